/* Decodes a REST body of messages in JSON and base64 into record batches in one pass. Returns None for uncommon
 * bodies. */

#include "_base64.h"
#include "_writing.h"

enum { MOST_KEY = 256, MOST_PARTITIONS = 1 << 14 };

static uint32_t crc32_table[256];

void headrace_publish_prepare(void)
{
    headrace_base64_prepare();
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

/* SplitMix64. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t number = (*state += 0x9e3779b97f4a7c15u);
    number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
    number = (number ^ number >> 27) * 0x94d049bb133111ebu;
    return number ^ number >> 31;
}

/* Simple JSON: functions return the next position, or NULL for other input. */

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
    Bytes batch; /* header and records */
    int32_t count;
    size_t size; /* of keys and values */
} Share;

/* Return 0, 1 for an uncommon body, or -1 without memory. */
static int put_record(Share *share, const uint8_t *key, const Encoded *encoded_key, const Encoded *value)
{
    static const uint8_t attributes_and_time[2] = {0, 0}; /* all have the batch's time */
    Bytes *batch = &share->batch;
    int64_t key_size = encoded_key->text ? (int64_t)encoded_key->size : -1;
    size_t length = sizeof attributes_and_time + varint_size(share->count) + varint_size(key_size) + encoded_key->size
                    + varint_size((int64_t)value->size) + value->size + 1;
    if (make_room(batch, HEADER_SIZE + LONGEST_VARINT + length + BASE64_SLACK) < 0)
        return -1;
    if (!share->count)
        batch->used = HEADER_SIZE;
    add_varint(batch, (int64_t)length);
    add(batch, attributes_and_time, sizeof attributes_and_time);
    add_varint(batch, share->count);
    add_varint(batch, key_size);
    add(batch, key, encoded_key->size);
    add_varint(batch, (int64_t)value->size);
    if (headrace_decode_base64(value, batch->data + batch->used) < 0)
        return 1;
    batch->used += value->size;
    batch->data[batch->used++] = 0; /* headers */
    share->count++;
    share->size += encoded_key->size + value->size;
    return 0;
}

static PyObject *close_share(const Share *share, int partition, int64_t now_ms)
{
    const Closing fields = {
        .leader_epoch = -1,
        .last_offset_delta = share->count - 1,
        .base_timestamp = now_ms,
        .max_timestamp = now_ms,
        .count = share->count,
    };
    close_batch(&share->batch, &fields);
    PyObject *batch = PyByteArray_FromStringAndSize((const char *)share->batch.data, (Py_ssize_t)share->batch.used);
    return batch ? Py_BuildValue("(iNn)", partition, batch, (Py_ssize_t)share->size) : NULL;
}

static PyObject *close_shares(const Share *shares, int partitions, int64_t now_ms)
{
    PyObject *closed = PyList_New(0);
    for (int index = 0; closed && index < partitions; index++) {
        if (!shares[index].count)
            continue;
        PyObject *entry = close_share(&shares[index], index, now_ms);
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
    Bytes places; /* int32_t */
} Publication;

static int put_place(Publication *all, int32_t place)
{
    if (make_room(&all->places, sizeof place) < 0)
        return -1;
    add(&all->places, &place, sizeof place);
    return 0;
}

static int put_message(Publication *all, const Encoded *key, const Encoded *value)
{
    uint8_t key_bytes[MOST_KEY + BASE64_SLACK];
    all->total += key->size + value->size;
    if (!value->size || value->size > all->most_value || key->size > MOST_KEY || all->total > all->most_total
        || (key->text && headrace_decode_base64(key, key_bytes) < 0))
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
    uint8_t *unused = PyMem_RawMalloc(value->size + BASE64_SLACK);
    if (!unused)
        return -1;
    int result = headrace_decode_base64(value, unused) < 0;
    PyMem_RawFree(unused);
    return result;
}

/* Return 0, 1 for an uncommon body, or -1 without memory. */
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

/* Other threads run while a large body is read. For a small one, the switch would take longer.
 *
 * publish(body, partitions, now_ms, seed, left_out, most_value, most_total): (places, [(partition, batch, size)]),
 * or None for an uncommon body, or one that exceeds a limit. */
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
        published = shares ? Py_BuildValue("(y#N)", (const char *)all.places.data, (Py_ssize_t)all.places.used, shares)
                           : NULL;
    }
    for (int index = 0; index < partitions; index++)
        let_go(&all.shares[index].batch);
    PyMem_RawFree(all.shares);
    let_go(&all.places);
done:
    PyBuffer_Release(&body);
    return published;
}
