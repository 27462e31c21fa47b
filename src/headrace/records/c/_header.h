/* The 61-byte header of a record batch and its rules, for all C extensions. */

#ifndef HEADRACE_RECORDS_HEADER_H
#define HEADRACE_RECORDS_HEADER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    int64_t base_offset;
    int32_t batch_length;
    int32_t leader_epoch;
    int8_t magic;
    uint32_t crc;
    int16_t attributes;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int32_t count;
} BatchHeader;

/* In the order of the checks. */
typedef enum {
    FINE,
    NO_BATCH,
    OLD_MAGIC,
    UNKNOWN_MAGIC,
    SHORTER_THAN_HEADER,
    BYTES_MISSING,
    BYTES_BEHIND,
    CRC_DIFFERS,
    COUNTS_DIFFER,
    CONTROL_BIT,
    UNKNOWN_CODEC,
    PRODUCER_FIELDS_DIFFER,
    TRANSACTION_WITHOUT_PRODUCER,
} BatchFault;

enum { HEADER_SIZE = 61, BEFORE_LENGTH_ENDS = 12, MAGIC_AT = 16, CRC_AT = 17, ATTRIBUTES_AT = 21 };
enum { BATCH_CODEC = 7 };

/* Read the header of exactly one batch, and check lengths and magic. */
BatchFault headrace_peek_batch(const uint8_t *batch, Py_ssize_t size, BatchHeader *header);
/* The same, with the checks for clients: CRC, counts, attributes, producer. */
BatchFault headrace_check_batch(const uint8_t *batch, Py_ssize_t size, BatchHeader *header);
/* The 13 fields in wire order, or NULL with an exception set. */
PyObject *headrace_header_tuple(const BatchHeader *header);

static inline uint32_t headrace_read32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

#endif
