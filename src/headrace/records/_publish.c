/* The way in of a REST door: a body of messages in JSON and base64 becomes record batches in one pass.
 * Bodies of any other shape than the usual one are left to others: None. */

#include "_native.h"

enum { HEADER_SIZE = 61, MOST_KEY = 256, MOST_PARTITIONS = 1 << 14, LONGEST_VARINT = 10, SLACK = 16 };
enum { CRC_AT = 17, ATTRIBUTES_AT = 21 };

static const uint32_t INVALID = 0x80000000u;
static uint32_t base64_bits[4][256]; /* what a character stands for at each of the four places */
static uint32_t crc32_table[256];

static void find_instructions(void);

void headrace_publish_prepare(void)
{
    find_instructions();
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int place = 0; place < 4; place++) {
        for (int character = 0; character < 256; character++)
            base64_bits[place][character] = INVALID;
        for (uint32_t bits = 0; bits < 64; bits++)
            base64_bits[place][(uint8_t)alphabet[bits]] = bits << (18 - 6 * place);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        crc32_table[byte] = crc;
    }
}

static uint32_t crc32_of(const uint8_t *data, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (; size; size--, data++)
        crc = crc >> 8 ^ crc32_table[(crc ^ *data) & 255];
    return ~crc;
}

/* One number after another from a seed: SplitMix64. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t number = (*state += 0x9e3779b97f4a7c15u);
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 31;
}

/* JSON, as far as it is plain: functions return the place after what they read, or NULL when it is something else. */

static inline const uint8_t *skip_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

static inline const uint8_t *expect(const uint8_t *at, const uint8_t *end, char character)
{
    at = skip_space(at, end);
    return at < end && *at == character ? at + 1 : NULL;
}

static inline const uint8_t *expect_name(const uint8_t *at, const uint8_t *end, const char *name, size_t size)
{
    if ((size_t)(end - at) < size || memcmp(at, name, size) != 0)
        return NULL;
    return expect(at + size, end, ':');
}

typedef struct {
    const uint8_t *text; /* base64; NULL when there is none */
    size_t characters;
    size_t size; /* decoded */
} Encoded;

static const uint8_t *read_base64(const uint8_t *at, const uint8_t *end, Encoded *found)
{
    at = skip_space(at, end);
    if (at >= end || *at != '"')
        return NULL;
    at++;
    const uint8_t *close = memchr(at, '"', (size_t)(end - at));
    if (!close || (close - at) % 4)
        return NULL;
    found->text = at;
    found->characters = (size_t)(close - at);
    found->size = found->characters / 4 * 3;
    if (found->characters)
        found->size -= (size_t)(close[-1] == '=') + (size_t)(close[-1] == '=' && close[-2] == '=');
    return close + 1;
}

#if defined(__GNUC__) && defined(__x86_64__)

#include <immintrin.h>

static int has_avx2;

/* 32 characters at a time, as long as all of them are of the alphabet; how many groups of four were decoded.
 *
 * The high and the low half of a character each tell by a table which kinds of character it may be of; where both agree
 * on a bit it is none of the alphabet. The kind tells what to add to get the six bits, which are then packed by
 * multiplying neighbours together. */
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
static size_t decode_quickly(const uint8_t *Py_UNUSED(at), uint8_t *Py_UNUSED(to), size_t Py_UNUSED(groups))
{
    return 0;
}
static void find_instructions(void)
{
}

#endif

/* Decode into `to`, which has SLACK bytes more than needed; 0, or -1 for characters that are none, or bits left over. */
static int decode_base64(const Encoded *encoded, uint8_t *to)
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

static const uint8_t *read_message(const uint8_t *at, const uint8_t *end, Encoded *key, Encoded *value)
{
    *key = *value = (Encoded){NULL, 0, 0};
    int has_key = 0;
    do {
        at = skip_space(at, end);
        const uint8_t *content;
        if ((content = expect_name(at, end, "\"value\"", 7))) {
            if (value->text || !(at = read_base64(content, end, value)))
                return NULL;
        } else if ((content = expect_name(at, end, "\"key\"", 5))) {
            if (has_key)
                return NULL;
            has_key = 1;
            content = skip_space(content, end);
            if (end - content >= 4 && memcmp(content, "null", 4) == 0)
                at = content + 4;
            else if (!(at = read_base64(content, end, key)))
                return NULL;
        } else
            return NULL;
        at = skip_space(at, end);
        if (at >= end)
            return NULL;
    } while (*at++ == ',');
    return at[-1] == '}' && value->text ? at : NULL;
}

/* Batches. */

typedef struct {
    uint8_t *data; /* header and records */
    size_t used;
    size_t room;
    int32_t count;
    size_t size; /* of keys and values */
} Share;

static size_t write_varint(uint8_t *at, int64_t number)
{
    uint64_t bits = (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
    size_t size = 0;
    for (; bits > 127; bits >>= 7)
        at[size++] = (uint8_t)(bits | 128);
    at[size++] = (uint8_t)bits;
    return size;
}

static size_t varint_size(int64_t number)
{
    uint8_t unused[LONGEST_VARINT];
    return write_varint(unused, number);
}

static int make_room(Share *share, size_t more)
{
    if (share->used + more <= share->room)
        return 0;
    size_t room = share->room ? 2 * share->room : 1024;
    while (room < share->used + more)
        room *= 2;
    uint8_t *data = PyMem_RawRealloc(share->data, room);
    if (!data)
        return -1;
    share->data = data;
    share->room = room;
    return 0;
}

/* 0, 1 when it is to be left to others, -1 without memory. */
static int put_record(Share *share, const uint8_t *key, const Encoded *encoded_key, const Encoded *value)
{
    int64_t key_size = encoded_key->text ? (int64_t)encoded_key->size : -1;
    size_t key_bytes = encoded_key->size;
    if (!share->count)
        share->used = HEADER_SIZE;
    size_t length = 3 + varint_size(share->count) + varint_size(key_size) + key_bytes
                    + varint_size((int64_t)value->size) + value->size;
    if (make_room(share, HEADER_SIZE + LONGEST_VARINT + length + SLACK) < 0)
        return -1;
    uint8_t *at = share->data + share->used;
    at += write_varint(at, (int64_t)length);
    *at++ = 0; /* attributes */
    *at++ = 0; /* all have the batch's time */
    at += write_varint(at, share->count);
    at += write_varint(at, key_size);
    memcpy(at, key, key_bytes);
    at += key_bytes;
    at += write_varint(at, (int64_t)value->size);
    if (decode_base64(value, at) < 0)
        return 1;
    at += value->size;
    *at++ = 0; /* headers */
    share->used = (size_t)(at - share->data);
    share->count++;
    share->size += key_bytes + value->size;
    return 0;
}

static void write_big(uint8_t *at, uint64_t number, int size)
{
    for (; size; number >>= 8)
        at[--size] = (uint8_t)number;
}

static PyObject *close_batch(const Share *share, int64_t now_ms)
{
    uint8_t *batch = share->data;
    memset(batch, 0, HEADER_SIZE);
    write_big(batch + 8, share->used - 12, 4);
    write_big(batch + 12, UINT32_MAX, 4); /* leader epoch: none */
    batch[16] = 2;
    write_big(batch + 23, (uint64_t)share->count - 1, 4);
    write_big(batch + 27, (uint64_t)now_ms, 8);
    write_big(batch + 35, (uint64_t)now_ms, 8);
    memset(batch + 43, 0xff, 14); /* no producer */
    write_big(batch + 57, (uint64_t)share->count, 4);
    write_big(batch + CRC_AT, headrace_crc32c(0, batch + ATTRIBUTES_AT, share->used - ATTRIBUTES_AT), 4);
    return PyByteArray_FromStringAndSize((const char *)batch, (Py_ssize_t)share->used);
}

static PyObject *close_shares(const Share *shares, int partitions, int64_t now_ms)
{
    PyObject *closed = PyList_New(0);
    for (int index = 0; closed && index < partitions; index++) {
        if (!shares[index].count)
            continue;
        PyObject *batch = close_batch(&shares[index], now_ms);
        PyObject *entry = batch ? Py_BuildValue("(iNn)", index, batch, (Py_ssize_t)shares[index].size) : NULL;
        if (!entry || PyList_Append(closed, entry) < 0)
            Py_CLEAR(closed);
        Py_XDECREF(entry);
    }
    return closed;
}

typedef struct {
    Share *shares;
    int partitions;
    uint64_t random;
    Py_ssize_t left_out;
    size_t most_value;
    size_t most_total;
    size_t total;
    int32_t *places;
    size_t count;
    size_t room; /* of places */
} Publication;

static int put_place(Publication *all, int32_t place)
{
    if (all->count == all->room) {
        size_t room = all->room ? 2 * all->room : 256;
        int32_t *places = PyMem_RawRealloc(all->places, room * sizeof *places);
        if (!places)
            return -1;
        all->places = places;
        all->room = room;
    }
    all->places[all->count++] = place;
    return 0;
}

static int put_message(Publication *all, const Encoded *key, const Encoded *value)
{
    uint8_t key_bytes[MOST_KEY + SLACK];
    all->total += key->size + value->size;
    if (!value->size || value->size > all->most_value || key->size > MOST_KEY || all->total > all->most_total
        || (key->text && decode_base64(key, key_bytes) < 0))
        return 1;
    int32_t place = 0;
    if (all->left_out > 0)
        place = -1;
    else if (all->partitions > 1)
        place = (int32_t)(key->text ? crc32_of(key_bytes, key->size) % (uint32_t)all->partitions
                                    : next_random(&all->random) % (uint64_t)all->partitions);
    if (put_place(all, place) < 0)
        return -1;
    if (place >= 0)
        return put_record(&all->shares[place], key_bytes, key, value);
    all->left_out--;
    uint8_t *unused = PyMem_RawMalloc(value->size + SLACK);
    if (!unused)
        return -1;
    int result = decode_base64(value, unused) < 0;
    PyMem_RawFree(unused);
    return result;
}

/* 0, 1 when the body is to be left to others, -1 without memory. */
static int put_body(Publication *all, const uint8_t *at, const uint8_t *end)
{
    if (!(at = expect(at, end, '{')))
        return 1;
    at = skip_space(at, end);
    if (!(at = expect_name(at, end, "\"messages\"", 10)) || !(at = expect(at, end, '[')))
        return 1;
    do {
        Encoded key, value;
        if (!(at = expect(at, end, '{')) || !(at = read_message(at, end, &key, &value)))
            return 1;
        int result = put_message(all, &key, &value);
        if (result)
            return result;
        at = skip_space(at, end);
        if (at >= end)
            return 1;
    } while (*at++ == ',');
    if (at[-1] != ']' || !(at = expect(at, end, '}')) || skip_space(at, end) != end)
        return 1;
    return 0;
}

/* Other threads run while a large body is read, not while a small one is: getting back from them takes longer.
 *
 * publish(body, partitions, now_ms, seed, left_out, most_value, most_total): (places, [(partition, batch, size)]), or
 * None for a body that is not plain, or breaks a limit. */
PyObject *headrace_publish(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer body;
    int partitions;
    long long now_ms;
    unsigned long long seed;
    Py_ssize_t left_out, most_value, most_total;
    if (!PyArg_ParseTuple(args, "y*iLKnnn:publish", &body, &partitions, &now_ms, &seed, &left_out, &most_value,
                          &most_total))
        return NULL;
    PyObject *published = NULL;
    Publication all = {
        .partitions = partitions,
        .random = seed,
        .left_out = left_out,
        .most_value = (size_t)most_value,
        .most_total = (size_t)most_total,
    };
    if (partitions < 1 || partitions > MOST_PARTITIONS) {
        published = Py_NewRef(Py_None);
        goto done;
    }
    all.shares = PyMem_RawCalloc((size_t)partitions, sizeof *all.shares);
    if (!all.shares) {
        PyErr_NoMemory();
        goto done;
    }
    const uint8_t *start = body.buf;
    PyThreadState *others = body.len > LARGE_BODY ? PyEval_SaveThread() : NULL;
    int result = put_body(&all, start, start + body.len);
    if (others)
        PyEval_RestoreThread(others);
    if (result > 0)
        published = Py_NewRef(Py_None);
    else if (result < 0)
        PyErr_NoMemory();
    else {
        PyObject *shares = close_shares(all.shares, partitions, now_ms);
        published = shares ? Py_BuildValue("(y#N)", (const char *)all.places,
                                           (Py_ssize_t)(all.count * sizeof *all.places), shares)
                           : NULL;
    }
    for (int index = 0; index < partitions; index++)
        PyMem_RawFree(all.shares[index].data);
    PyMem_RawFree(all.shares);
    PyMem_RawFree(all.places);
done:
    PyBuffer_Release(&body);
    return published;
}
