/* Declarations of headrace.records._compiled. Every read is bounds-checked, as the bytes are not trusted. */

#ifndef HEADRACE_RECORDS_NATIVE_H
#define HEADRACE_RECORDS_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Classes of headrace.records.errors, looked up when the module is imported. */
extern PyObject *headrace_corrupt_batch;

/* _crc32c.c */
void headrace_crc32c_prepare(void);
const char *headrace_crc32c_kind(void);
uint32_t headrace_crc32c(uint32_t crc, const uint8_t *data, size_t size);
/* The same without the instruction, for tests. */
uint32_t headrace_crc32c_tables(uint32_t crc, const uint8_t *data, size_t size);

/* _record.c: one record of a record batch, its fields pointing into the payload. */
typedef struct {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size; /* -1 for null, as value_size */
    int32_t value_size;
    int32_t header_count;
    int32_t header_bytes; /* of all keys and values together */
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* the first header; all of them have been read once */
    const uint8_t *end;
} Record;

typedef struct {
    int32_t key_size;
    int32_t value_size; /* -1 for null */
    const uint8_t *key;
    const uint8_t *value;
} Header;

/* The state of an iteration over the records of one batch. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    int32_t remaining;
    int32_t last_offset_delta;
    int32_t previous_offset_delta;
} Walk;

enum { SHORTEST_RECORD = 7 }; /* bytes: one per field */
/* Start a records section. Return 0, or -1 with CorruptBatch set if it is too short for so many records. */
int headrace_start_walk(Walk *walk, const Py_buffer *payload, int32_t count, int32_t last_offset_delta);
/* Read the next record. Return 0, or -1 with CorruptBatch set. `at` and `remaining` move only on success. Other
 * threads can run. */
int headrace_next_record(Walk *walk, Record *record);
/* The same without the error. Return NULL, or what is wrong. It needs no Python. */
const char *headrace_read_record(Walk *walk, Record *record);
/* Read the header at `at` of a valid record, and return the next position. */
const uint8_t *headrace_read_header(const uint8_t *at, const Record *record, Header *header);
/* Check that no bytes follow the last record. Return 0, or -1 with CorruptBatch set. */
int headrace_walk_ended(const Walk *walk);
/* Base timestamp + delta in milliseconds, wrapping as Java's long does. */
static inline int64_t headrace_add_wrapping(int64_t base, int64_t delta)
{
    return (int64_t)((uint64_t)base + (uint64_t)delta);
}
/* Check that a type can hold records (a named tuple). Return 0, or -1 with TypeError set. */
int headrace_check_type(PyTypeObject *type);
/* Return the record as such a tuple, with its first `header_count` headers; NULL with an error set. */
PyObject *headrace_record_object(PyTypeObject *type, const Record *record, int64_t offset, int64_t timestamp);
PyObject *headrace_records(PyObject *module, PyObject *args);

/* _some.c */
PyObject *headrace_some(PyObject *module, PyObject *args);

/* _find.c */
PyObject *headrace_find(PyObject *module, PyObject *args);

/* _checks.c */
PyObject *headrace_keyless(PyObject *module, PyObject *args);
PyObject *headrace_schemas(PyObject *module, PyObject *args);

/* _encode.c */
PyObject *headrace_encode(PyObject *module, PyObject *args);
PyObject *headrace_encode_columns(PyObject *module, PyObject *args);
PyObject *headrace_encode_rows(PyObject *module, PyObject *args);

/* A buffer that grows. It is a bytes object, so that the caller gets it without a copy. */
enum { SPARES = 3, WORTH_SPARING = 64 * 1024 };
typedef struct {
    PyObject *bytes;
    size_t used;
    size_t usual; /* initial size, a bit more than at the last `take` */
    /* Large buffers that were returned, and are reused after their release, as new memory costs more than decoding.
     * Enough for one reader, which holds one while the next is filled. */
    PyObject *spares[SPARES];
} Buffer;

static inline int reserve_anew(Buffer *buffer, size_t wanted)
{
    if (wanted < buffer->usual)
        wanted = buffer->usual;
    if (wanted < 256)
        wanted = 256;
    for (int index = 0; index < SPARES; index++) {
        PyObject *spare = buffer->spares[index];
        if (spare && Py_REFCNT(spare) == 1 && (size_t)PyBytes_GET_SIZE(spare) >= wanted) {
            buffer->spares[index] = NULL;
            buffer->bytes = spare;
            return 0;
        }
    }
    buffer->bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wanted);
    return buffer->bytes ? 0 : -1;
}

static inline int reserve(Buffer *buffer, size_t more)
{
    size_t wanted = buffer->used + more;
    if (!buffer->bytes)
        return reserve_anew(buffer, wanted);
    size_t capacity = (size_t)PyBytes_GET_SIZE(buffer->bytes);
    if (wanted <= capacity)
        return 0;
    return _PyBytes_Resize(&buffer->bytes, (Py_ssize_t)(wanted < 2 * capacity ? 2 * capacity : wanted));
}

/* Write into memory from `reserve`. */
static inline void put(Buffer *buffer, const void *data, size_t size)
{
    memcpy(PyBytes_AS_STRING(buffer->bytes) + buffer->used, data, size);
    buffer->used += size;
}

static inline void drop(Buffer *buffer)
{
    Py_CLEAR(buffer->bytes);
    buffer->used = 0;
}

/* Return the bytes that were written. */
static inline PyObject *take(Buffer *buffer)
{
    buffer->usual = buffer->used + buffer->used / 8;
    if (!buffer->bytes)
        return PyBytes_FromStringAndSize(NULL, 0);
    if ((size_t)PyBytes_GET_SIZE(buffer->bytes) != buffer->used
        && _PyBytes_Resize(&buffer->bytes, (Py_ssize_t)buffer->used) < 0)
        return NULL;
    PyObject *bytes = buffer->bytes;
    buffer->bytes = NULL;
    buffer->used = 0;
    return bytes;
}

/* _messages.c */
extern PyTypeObject headrace_messages_type;

/* Size from which other threads run while messages are read or written; also LARGE_BODY of the OCI API's
 * PutMessages. */
enum { LARGE_BODY = 256 << 10 };

/* _publish.c */
void headrace_publish_prepare(void);
PyObject *headrace_publish(PyObject *module, PyObject *args);

/* _receipts.c */
PyObject *headrace_receipts(PyObject *module, PyObject *args);

/* _offset_map.c */
extern PyTypeObject headrace_offset_map_type;

/* _merge.c */
PyObject *headrace_merge(PyObject *module, PyObject *args);

/* _columns.c */
extern PyTypeObject headrace_columns_type;

#endif
