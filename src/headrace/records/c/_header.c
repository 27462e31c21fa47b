/* Check of batch headers, without exceptions: the caller interprets a fault. */

#include "_header.h"
#include "_compiled.h"

enum { LAST_CODEC = 4, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

static uint16_t read16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static int64_t read64(const uint8_t *at)
{
    return (int64_t)((uint64_t)headrace_read32(at) << 32 | headrace_read32(at + 4));
}

BatchFault headrace_peek_batch(const uint8_t *batch, Py_ssize_t size, BatchHeader *header)
{
    if (size <= MAGIC_AT)
        return NO_BATCH;
    int64_t length = (int32_t)headrace_read32(batch + 8);
    int magic = (int8_t)batch[MAGIC_AT];
    if (magic == 0 || magic == 1)
        return OLD_MAGIC;
    if (magic != 2)
        return UNKNOWN_MAGIC;
    if (size < HEADER_SIZE || length < HEADER_SIZE - BEFORE_LENGTH_ENDS)
        return SHORTER_THAN_HEADER;
    if (length + BEFORE_LENGTH_ENDS > size)
        return BYTES_MISSING;
    if (length + BEFORE_LENGTH_ENDS < size)
        return BYTES_BEHIND;
    *header = (BatchHeader){
        .base_offset = read64(batch),
        .batch_length = (int32_t)length,
        .leader_epoch = (int32_t)headrace_read32(batch + 12),
        .magic = (int8_t)magic,
        .crc = headrace_read32(batch + CRC_AT),
        .attributes = (int16_t)read16(batch + ATTRIBUTES_AT),
        .last_offset_delta = (int32_t)headrace_read32(batch + 23),
        .base_timestamp = read64(batch + 27),
        .max_timestamp = read64(batch + 35),
        .producer_id = read64(batch + 43),
        .producer_epoch = (int16_t)read16(batch + 51),
        .base_sequence = (int32_t)headrace_read32(batch + 53),
        .count = (int32_t)headrace_read32(batch + 57),
    };
    return FINE;
}

static BatchFault broken_rule(const BatchHeader *header)
{
    if (header->count <= 0 || header->last_offset_delta != header->count - 1)
        return COUNTS_DIFFER;
    if (header->attributes & CONTROL)
        return CONTROL_BIT;
    if ((header->attributes & BATCH_CODEC) > LAST_CODEC)
        return UNKNOWN_CODEC;
    if (header->producer_id < -1
        || (header->producer_id >= 0 && (header->producer_epoch < 0 || header->base_sequence < 0)))
        return PRODUCER_FIELDS_DIFFER;
    if (header->attributes & TRANSACTIONAL && header->producer_id < 0)
        return TRANSACTION_WITHOUT_PRODUCER;
    return FINE;
}

BatchFault headrace_check_batch(const uint8_t *batch, Py_ssize_t size, BatchHeader *header)
{
    BatchFault fault = headrace_peek_batch(batch, size, header);
    if (fault != FINE)
        return fault;
    if (headrace_crc32c(0, batch + ATTRIBUTES_AT, (size_t)size - ATTRIBUTES_AT) != header->crc)
        return CRC_DIFFERS;
    return broken_rule(header);
}

PyObject *headrace_header_tuple(const BatchHeader *header)
{
    PyObject *fields[] = {
        PyLong_FromLongLong(header->base_offset),      PyLong_FromLong(header->batch_length),
        PyLong_FromLong(header->leader_epoch),         PyLong_FromLong(header->magic),
        PyLong_FromUnsignedLong(header->crc),          PyLong_FromLong(header->attributes),
        PyLong_FromLong(header->last_offset_delta),    PyLong_FromLongLong(header->base_timestamp),
        PyLong_FromLongLong(header->max_timestamp),    PyLong_FromLongLong(header->producer_id),
        PyLong_FromLong(header->producer_epoch),       PyLong_FromLong(header->base_sequence),
        PyLong_FromLong(header->count),
    };
    enum { FIELDS = sizeof fields / sizeof *fields };
    PyObject *tuple = PyTuple_New(FIELDS);
    for (Py_ssize_t index = 0; index < FIELDS; index++) {
        if (!fields[index])
            Py_CLEAR(tuple);
        if (tuple)
            PyTuple_SET_ITEM(tuple, index, fields[index]);
        else
            Py_XDECREF(fields[index]);
    }
    return tuple;
}
