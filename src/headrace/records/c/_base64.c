#include "_base64.h"

static const uint32_t INVALID = 0x80000000u;
static uint32_t base64_bits[4][256]; /* the value of a character at each of the four places */
char headrace_base64_pairs[4096][2];

#if defined(__GNUC__) && defined(__x86_64__)

#include <immintrin.h>

static int has_avx2;

/* Decode 32 characters at a time while all are valid, and return the number of groups of four.
 *
 * Each half of a character selects possible kinds from a table. If both share a bit, the character is invalid. The
 * kind determines the number to add. The results have six bits, and are packed by multiplications. */
__attribute__((target("avx2"))) static size_t decode_quickly(const uint8_t *at, uint8_t *to, size_t groups)
{
    const __m256i low_kinds = _mm256_setr_epi8(0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1a,
                                               0x1b, 0x1b, 0x1b, 0x1a, 0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
                                               0x11, 0x11, 0x13, 0x1a, 0x1b, 0x1b, 0x1b, 0x1a);
    const __m256i high_kinds = _mm256_setr_epi8(0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10,
                                                0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08,
                                                0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10);
    const __m256i shifts = _mm256_setr_epi8(0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 19, 4, -65,
                                            -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i order = _mm256_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1, 2, 1, 0, 6, 5, 4, 10,
                                           9, 8, 14, 13, 12, -1, -1, -1, -1);
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    size_t done = 0;
    for (; done + 8 <= groups; done += 8, at += 32, to += 24) {
        __m256i text = _mm256_loadu_si256((const __m256i *)at);
        __m256i high = _mm256_and_si256(_mm256_srli_epi32(text, 4), nibble);
        __m256i low = _mm256_and_si256(text, nibble);
        if (!_mm256_testz_si256(_mm256_shuffle_epi8(low_kinds, low), _mm256_shuffle_epi8(high_kinds, high)))
            break;
        __m256i slash = _mm256_cmpeq_epi8(text, _mm256_set1_epi8('/'));
        __m256i bits = _mm256_add_epi8(text, _mm256_shuffle_epi8(shifts, _mm256_add_epi8(slash, high)));
        __m256i pairs = _mm256_maddubs_epi16(bits, _mm256_set1_epi32(0x01400140));
        __m256i triples = _mm256_shuffle_epi8(_mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00011000)), order);
        _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(triples));
        _mm_storeu_si128((__m128i *)(to + 12), _mm256_extracti128_si256(triples, 1));
    }
    return done;
}

static void find_instructions(void)
{
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2");
}

#else

static const int has_avx2 = 0;
static size_t decode_quickly(const uint8_t *at, uint8_t *to, size_t groups)
{
    (void)at, (void)to, (void)groups;
    return 0;
}
static void find_instructions(void)
{
}

#endif

void headrace_base64_prepare(void)
{
    find_instructions();
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int place = 0; place < 4; place++) {
        for (int character = 0; character < 256; character++)
            base64_bits[place][character] = INVALID;
        for (uint32_t bits = 0; bits < 64; bits++)
            base64_bits[place][(uint8_t)alphabet[bits]] = bits << (18 - 6 * place);
    }
    for (int bits = 0; bits < 4096; bits++) {
        headrace_base64_pairs[bits][0] = alphabet[bits >> 6];
        headrace_base64_pairs[bits][1] = alphabet[bits & 63];
    }
}

int headrace_decode_base64(const Encoded *encoded, uint8_t *to)
{
    const uint8_t *at = encoded->text;
    size_t whole = encoded->size / 3;
    uint32_t seen = 0;
    if (has_avx2) {
        size_t done = decode_quickly(at, to, whole);
        whole -= done;
        at += 4 * done;
        to += 3 * done;
    }
    for (; whole; whole--, at += 4, to += 3) {
        uint32_t bits
            = base64_bits[0][at[0]] | base64_bits[1][at[1]] | base64_bits[2][at[2]] | base64_bits[3][at[3]];
        seen |= bits;
        to[0] = (uint8_t)(bits >> 16);
        to[1] = (uint8_t)(bits >> 8);
        to[2] = (uint8_t)bits;
    }
    size_t rest = encoded->size % 3;
    if (rest) {
        uint32_t bits = base64_bits[0][at[0]] | base64_bits[1][at[1]] | (rest == 2 ? base64_bits[2][at[2]] : 0);
        seen |= bits;
        if (bits & (rest == 2 ? 0xffu : 0xffffu))
            return -1;
        to[0] = (uint8_t)(bits >> 16);
        if (rest == 2)
            to[1] = (uint8_t)(bits >> 8);
    }
    return seen & INVALID ? -1 : 0;
}
