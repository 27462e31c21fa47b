/* Writing of record batches: growing memory, integers and headers. It needs no Python, so that other threads can
 * run. */

#ifndef HEADRACE_RECORDS_WRITING_H
#define HEADRACE_RECORDS_WRITING_H

#include "_header.h"
#include "_compiled.h"

enum { LONGEST_VARINT = 10 };

typedef struct {
    uint8_t *data;
    size_t used;
    size_t room;
} Bytes;

/* Return 0, or -1 without memory; existing bytes are kept. */
static inline int make_room(Bytes *bytes, size_t more)
{
    size_t wanted = bytes->used + more;
    if (wanted <= bytes->room)
        return 0;
    size_t room = wanted < 2 * bytes->room ? 2 * bytes->room : wanted + 256;
    uint8_t *data = PyMem_RawRealloc(bytes->data, room);
    if (!data)
        return -1;
    bytes->data = data;
    bytes->room = room;
    return 0;
}

static inline void let_go(Bytes *bytes)
{
    PyMem_RawFree(bytes->data);
    *bytes = (Bytes){0};
}

/* Write into memory from make_room, like all functions below. */
static inline void add(Bytes *bytes, const void *data, size_t size)
{
    memcpy(bytes->data + bytes->used, data, size);
    bytes->used += size;
}

/* Write a zigzag varint, and return its size. */
static inline size_t write_varint(uint8_t *at, int64_t number)
{
    uint64_t bits = (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
    size_t size = 0;
    for (; bits > 127; bits >>= 7)
        at[size++] = (uint8_t)(bits | 128);
    at[size++] = (uint8_t)bits;
    return size;
}

static inline size_t varint_size(int64_t number)
{
    uint8_t unused[LONGEST_VARINT];
    return write_varint(unused, number);
}

static inline void add_varint(Bytes *bytes, int64_t number)
{
    bytes->used += write_varint(bytes->data + bytes->used, number);
}

static inline void write_big_endian(uint8_t *at, uint64_t number, int size)
{
    for (; size; number >>= 8)
        at[--size] = (uint8_t)number;
}

typedef struct {
    int64_t base_offset;
    int32_t leader_epoch;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int32_t count;
} Closing;

/* Write the header into the first HEADER_SIZE bytes: no producer, uncompressed. */
static inline void close_batch(const Bytes *batch, const Closing *fields)
{
    uint8_t *at = batch->data;
    memset(at, 0, HEADER_SIZE);
    write_big_endian(at, (uint64_t)fields->base_offset, 8);
    write_big_endian(at + 8, batch->used - BEFORE_LENGTH_ENDS, 4);
    write_big_endian(at + 12, (uint64_t)fields->leader_epoch, 4);
    at[MAGIC_AT] = 2;
    write_big_endian(at + 23, (uint64_t)fields->last_offset_delta, 4);
    write_big_endian(at + 27, (uint64_t)fields->base_timestamp, 8);
    write_big_endian(at + 35, (uint64_t)fields->max_timestamp, 8);
    memset(at + 43, 0xff, 14); /* producer id, epoch and sequence: none */
    write_big_endian(at + 57, (uint64_t)fields->count, 4);
    uint32_t crc = headrace_crc32c(0, at + ATTRIBUTES_AT, batch->used - ATTRIBUTES_AT);
    write_big_endian(at + CRC_AT, crc, 4);
}

#endif
