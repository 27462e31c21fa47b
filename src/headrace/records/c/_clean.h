/* Declarations of log compaction: offsets of keys, and what remains of batches. Without Python, so that other threads
 * can run. */

#ifndef HEADRACE_RECORDS_CLEAN_H
#define HEADRACE_RECORDS_CLEAN_H

#include "_header.h"
#include "_writing.h"

/* _offset_map.c */
typedef struct {
    uint64_t first; /* of the hash */
    uint64_t second;
    int64_t following; /* offset + 1; 0: the slot is empty */
} Slot;

typedef struct {
    Slot *slots;
    uint64_t count;
    uint64_t limit; /* of `used`; below `count`, so that a search ends */
    uint64_t used;
    uint64_t seed[2];
} OffsetMap;

/* Return the last offset of a key, or -1. */
int64_t headrace_offset_of(const OffsetMap *map, const uint8_t *key, int32_t size);
/* Return 0, or -1 if the map is full. */
int headrace_put_offset(OffsetMap *map, const uint8_t *key, int32_t size, int64_t offset);

/* _clean.c */
enum { LOG_APPEND = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20, HORIZON = 0x40 };

typedef struct {
    Py_buffer batch;
    Py_buffer section; /* decompressed records; `obj` is NULL if there are none */
    int passed_over;   /* of an aborted transaction */
} Given;

/* Read the header of a stored batch. Return 0, or -1 also for a wrong CRC and impossible offsets. */
int headrace_read_stored(const Given *given, BatchHeader *header);
/* Start the records, which are in the batch or decompressed. Return 0, or -1 if there cannot be so many. */
int headrace_start_stored(const Given *given, const BatchHeader *header, Walk *walk);
/* Whether all records can be read, and nothing follows them. */
int headrace_is_readable(Walk walk);

/* Skip a varint of a valid record. */
static inline const uint8_t *headrace_skip_varint(const uint8_t *at)
{
    while (*at & 128)
        at++;
    return at + 1;
}

typedef enum { ADDED, MAP_FULL, NOT_READ } Addition;

Addition headrace_add_batch(OffsetMap *map, const Given *given);

typedef enum { KEPT, REMOVED, CHANGED, UNREADABLE, NO_MEMORY } Fate;

typedef struct {
    const OffsetMap *map;
    int64_t now_ms;
    int64_t horizon_ms; /* for tombstones that have none */
    int clean_segment;
    Bytes made;      /* changed batches */
    Bytes decisions; /* whether each record of the batch survives */
    int64_t records_read;
    int64_t records_kept;
    int64_t tombstones;
    int has_horizon;
    int64_t earliest; /* horizon, if there is one */
} Cleaning;

/* Decide about a batch. A changed one is written to the end of `made`. */
Fate headrace_clean_batch(Cleaning *cleaning, const Given *given);

/* _offset_map.c */
/* Take hold of all batches and sections. `flags` may be NULL. Return NULL with an error set. */
Given *headrace_receive_batches(PyObject *batches, PyObject *sections, const Py_buffer *flags, Py_ssize_t *count);
void headrace_release_batches(Given *given, Py_ssize_t count);
/* Return a list of what remains of each batch. `ends` has where changed ones end in `made`. */
PyObject *headrace_remaining_batches(const Given *given, const uint8_t *fates, const size_t *ends, const Bytes *made,
                                     Py_ssize_t count);

#endif
