/* CRC-32C (Castagnoli), by the processor's instruction or by tables. */

#include "_compiled.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

static uint32_t table[8][256];

static uint32_t with_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                              | (uint32_t)data[3] << 24);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24]
              ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size; size--, data++)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

static void prepare_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++)
            table[slice][byte] = table[slice - 1][byte] >> 8 ^ table[0][table[slice - 1][byte] & 255];
}

#if defined(__GNUC__) && defined(__x86_64__)

#include <nmmintrin.h>
#define HARDWARE "sse4.2"
#define HARDWARE_FUNCTION __attribute__((target("sse4.2")))
#define ADD_8_BYTES(crc, value) ((uint32_t)_mm_crc32_u64((crc), (value)))
#define ADD_BYTE(crc, value) _mm_crc32_u8((crc), (value))
static int hardware_there(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}

#elif defined(__GNUC__) && defined(__aarch64__) && defined(__AARCH64EL__)

/* Assembly, as compilers differ in how they compile a function for an extension. */
#define HARDWARE "armv8"
#define HARDWARE_FUNCTION
static inline uint32_t add_8_bytes(uint32_t crc, uint64_t value)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(value));
    return crc;
}
static inline uint32_t add_byte(uint32_t crc, uint32_t value)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(value));
    return crc;
}
#define ADD_8_BYTES(crc, value) add_8_bytes((crc), (value))
#define ADD_BYTE(crc, value) add_byte((crc), (value))
#if defined(__linux__)
#include <sys/auxv.h>
static int hardware_there(void)
{
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
}
#elif defined(__APPLE__)
static int hardware_there(void)
{
    return 1; /* every ARM Mac has it */
}
#else
static int hardware_there(void)
{
    return 0;
}
#endif

#endif

#ifdef HARDWARE

/* The instruction takes three cycles, and one can start in each. So three stretches are computed in parallel. To
 * combine them, a CRC is shifted by a stretch of zeros, which is linear and takes four table look-ups. */
#define LONG_STRETCH 4096
#define SHORT_STRETCH 256

static uint32_t past_long[4][256];
static uint32_t past_short[4][256];

static void prepare_zeros(uint32_t past[4][256], size_t stretch)
{
    static const uint8_t zeros[LONG_STRETCH];
    for (int byte = 0; byte < 4; byte++) {
        past[byte][0] = 0;
        for (uint32_t bit = 0; bit < 8; bit++) {
            uint32_t moved = with_tables((uint32_t)1 << (8 * byte + bit), zeros, stretch);
            for (uint32_t lower = 0; lower < 1u << bit; lower++)
                past[byte][1u << bit | lower] = past[byte][lower] ^ moved;
        }
    }
}

static inline uint32_t move(uint32_t past[4][256], uint32_t crc)
{
    return past[0][crc & 255] ^ past[1][crc >> 8 & 255] ^ past[2][crc >> 16 & 255] ^ past[3][crc >> 24];
}

static inline uint64_t load(const uint8_t *data)
{
    uint64_t value;
    memcpy(&value, data, 8);
    return value;
}

HARDWARE_FUNCTION static uint32_t three_stretches(uint32_t crc, const uint8_t *data, size_t stretch,
                                                  uint32_t past[4][256])
{
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t at = 0; at < stretch; at += 8) {
        crc = ADD_8_BYTES(crc, load(data + at));
        second = ADD_8_BYTES(second, load(data + stretch + at));
        third = ADD_8_BYTES(third, load(data + 2 * stretch + at));
    }
    return move(past, move(past, crc) ^ second) ^ third;
}

HARDWARE_FUNCTION static uint32_t with_hardware(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 3 * LONG_STRETCH; size -= 3 * LONG_STRETCH, data += 3 * LONG_STRETCH)
        crc = three_stretches(crc, data, LONG_STRETCH, past_long);
    for (; size >= 3 * SHORT_STRETCH; size -= 3 * SHORT_STRETCH, data += 3 * SHORT_STRETCH)
        crc = three_stretches(crc, data, SHORT_STRETCH, past_short);
    for (; size >= 8; size -= 8, data += 8)
        crc = ADD_8_BYTES(crc, load(data));
    for (; size; size--, data++)
        crc = ADD_BYTE(crc, *data);
    return crc;
}

#endif

static uint32_t (*update)(uint32_t, const uint8_t *, size_t) = with_tables;

void headrace_crc32c_prepare(void)
{
    prepare_tables();
#ifdef HARDWARE
    if (hardware_there()) {
        prepare_zeros(past_long, LONG_STRETCH);
        prepare_zeros(past_short, SHORT_STRETCH);
        update = with_hardware;
    }
#endif
}

const char *headrace_crc32c_kind(void)
{
#ifdef HARDWARE
    if (update == with_hardware)
        return HARDWARE;
#endif
    return "tables";
}

/* `crc` is the value so far, 0 at the start, as in zlib's crc32. */
uint32_t headrace_crc32c(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~update(~crc, data, size);
}

uint32_t headrace_crc32c_tables(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~with_tables(~crc, data, size);
}
