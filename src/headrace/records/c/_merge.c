/* Merging of cleaned batches; see records/fallback/merging.py for the rules. */

#include "_clean.h"

enum { LONGEST_MERGED = 1 << 28, BEFORE_REST = 32 }; /* bytes of a record before its key, at most */

/* A batch that may be merged with others. */
typedef struct {
    BatchHeader header;
    Walk walk;
    size_t size; /* of its records */
} Member;

/* Return 0, or -1 if the batch must stay as it is. */
static int read_member(const Given *given, Member *member)
{
    if (headrace_read_stored(given, &member->header) < 0 || member->header.attributes & (TRANSACTIONAL | CONTROL)
        || member->header.count <= 0 || headrace_start_stored(given, &member->header, &member->walk) < 0
        || !headrace_is_readable(member->walk))
        return -1;
    member->size = (size_t)(member->walk.end - member->walk.at);
    return 0;
}

static int64_t last_offset(const BatchHeader *header)
{
    return header->base_offset + header->last_offset_delta;
}

/* Whether a batch can follow in the batch that begins with `first`. */
static int fits(const BatchHeader *first, const BatchHeader *previous, const BatchHeader *next)
{
    return next->attributes == first->attributes && next->leader_epoch == first->leader_epoch
           && next->base_offset > last_offset(previous) && last_offset(next) - first->base_offset <= INT32_MAX
           && (!(first->attributes & LOG_APPEND) || next->max_timestamp == first->max_timestamp)
           && (!(first->attributes & HORIZON) || next->base_timestamp == first->base_timestamp);
}

/* Add the records of a batch, with deltas to the first batch. Return 0, or -1 without memory. */
static int add_records(Bytes *made, const BatchHeader *first, const Member *member, int64_t *max_timestamp)
{
    Walk walk = member->walk;
    Record record;
    while (walk.remaining > 0) {
        const uint8_t *attributes = headrace_skip_varint(walk.at);
        if (headrace_read_record(&walk, &record))
            break;
        const uint8_t *rest = headrace_skip_varint(headrace_skip_varint(attributes + 1));
        size_t left = (size_t)(record.end - rest);
        int64_t timestamp = headrace_add_wrapping(member->header.base_timestamp, record.timestamp_delta);
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)first->base_timestamp);
        int64_t offset_delta = member->header.base_offset + record.offset_delta - first->base_offset;
        if (timestamp > *max_timestamp)
            *max_timestamp = timestamp;
        if (make_room(made, left + BEFORE_REST) < 0)
            return -1;
        add_varint(made, (int64_t)(1 + varint_size(delta) + varint_size(offset_delta) + left));
        add(made, attributes, 1);
        add_varint(made, delta);
        add_varint(made, offset_delta);
        add(made, rest, left);
    }
    return 0;
}

/* Write a batch with the records of `count` batches to the end of `made`. Return 0, or -1 without memory. */
static int write_merged(Bytes *made, const Given *given, Py_ssize_t count)
{
    size_t start = made->used;
    int64_t max_timestamp = INT64_MIN;
    int32_t records = 0;
    Member first = {0}, member = {0};
    if (make_room(made, HEADER_SIZE) < 0)
        return -1;
    add(made, given->batch.buf, HEADER_SIZE);
    for (Py_ssize_t index = 0; index < count; index++) {
        /* It was read before. */
        if (read_member(&given[index], &member) < 0)
            break;
        if (index == 0)
            first = member;
        if (add_records(made, &first.header, &member, &max_timestamp) < 0)
            return -1;
        records += member.header.count;
    }
    uint8_t *batch = made->data + start;
    size_t size = made->used - start;
    write_big_endian(batch + 8, size - BEFORE_LENGTH_ENDS, 4);
    write_big_endian(batch + 23, (uint64_t)(last_offset(&member.header) - first.header.base_offset), 4);
    if (!(first.header.attributes & LOG_APPEND))
        write_big_endian(batch + 35, (uint64_t)max_timestamp, 8);
    memset(batch + 43, 0xff, 14); /* producer id, epoch and sequence: none */
    write_big_endian(batch + 57, (uint64_t)records, 4);
    write_big_endian(batch + CRC_AT, headrace_crc32c(0, batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT), 4);
    return 0;
}

/* Return how many batches, from the first one on, become one of at most `most` bytes of records. */
static Py_ssize_t count_members(const Given *given, Py_ssize_t count, size_t most)
{
    Member first, previous, next;
    if (read_member(given, &first) < 0)
        return 1;
    size_t size = first.size;
    Py_ssize_t found = 1;
    for (previous = first; found < count; found++, previous = next) {
        if (read_member(&given[found], &next) < 0 || !fits(&first.header, &previous.header, &next.header)
            || size + next.size > most)
            break;
        size += next.size;
    }
    return found;
}

/* Return 0, or -1 without memory. */
static int merge_all(Bytes *made, const Given *given, uint8_t *fates, size_t *ends, Py_ssize_t count, size_t most)
{
    Py_ssize_t members;
    for (Py_ssize_t index = 0; index < count; index += members) {
        members = count_members(&given[index], count - index, most);
        fates[index] = members > 1 ? CHANGED : KEPT;
        if (members > 1 && write_merged(made, &given[index], members) < 0)
            return -1;
        ends[index] = made->used;
        memset(fates + index + 1, REMOVED, (size_t)members - 1);
    }
    return 0;
}

PyObject *headrace_merge(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *batches, *sections, *result = NULL;
    Py_ssize_t most, count = 0;
    Bytes made = {0};
    if (!PyArg_ParseTuple(args, "O!O!n:merge", &PyList_Type, &batches, &PyList_Type, &sections, &most))
        return NULL;
    if (most < 0 || most > LONGEST_MERGED) {
        PyErr_Format(PyExc_ValueError, "merge: batches of 0 to %d bytes", LONGEST_MERGED);
        return NULL;
    }
    Given *given = headrace_receive_batches(batches, sections, NULL, &count);
    uint8_t *fates = given ? PyMem_Calloc((size_t)count + 1, 1) : NULL;
    size_t *ends = given ? PyMem_Calloc((size_t)count + 1, sizeof(size_t)) : NULL;
    if (given && (!fates || !ends)) {
        PyErr_NoMemory();
    } else if (given) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = merge_all(&made, given, fates, ends, count, (size_t)most);
        Py_END_ALLOW_THREADS
        result = done < 0 ? PyErr_NoMemory() : headrace_remaining_batches(given, fates, ends, &made, count);
    }
    let_go(&made);
    PyMem_Free(fates);
    PyMem_Free(ends);
    headrace_release_batches(given, count);
    return result;
}
