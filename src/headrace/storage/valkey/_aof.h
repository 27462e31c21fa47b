/* Shared by the parts of headrace.storage.valkey._aof: places of logs' batches in a file; see `_aof.c`. */

#ifndef HEADRACE_AOF_H
#define HEADRACE_AOF_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <sys/uio.h>

enum { WINDOW = 2048 };     /* bytes of one read of the file */
enum { AT_END, MORE, ABSENT, UNKNOWN, FOUND, OTHER }; /* results of a scan or of parsing */

typedef struct {
    int64_t next, position; /* offset after the batch; its position in the file */
    uint32_t term;
    int32_t size;
} Place;

typedef struct Log {
    struct Log *chained;
    uint64_t hash;
    int64_t base;   /* offset of the first record of the first place */
    int64_t before; /* term of the entry before that place; -1: unknown */
    Place *places;
    Py_ssize_t start, end, room; /* known places are from start to end */
    Py_ssize_t key_size;
    char key[];
} Log;

typedef struct {
    PyObject_HEAD
    Log **buckets;
    size_t bucket_count, logs;
    Py_ssize_t places, most; /* of all logs */
    int64_t position, size;  /* of the next command or argument; of the file */
    int64_t left;            /* arguments of a command to skip */
    int heed;                /* whether these may name a log */
    int database, fd;
    int64_t cost;
    int64_t window_at;
    Py_ssize_t window_size;
    char window[WINDOW];
} Index;

/* _aof_index.c: known batches */
Log *headrace_aof_log(Index *self, const char *key, Py_ssize_t size);
void headrace_aof_forget(Index *self, const char *key, Py_ssize_t size);
void headrace_aof_forget_all(Index *self);
/* Make room for more logs; -1 without an exception if memory is exhausted. */
int headrace_aof_widen(Index *self);
int headrace_aof_is_before(const Place *place, uint64_t term, int64_t next);
/* Return the first place of a log at or after an entry id. */
Py_ssize_t headrace_aof_place_from(const Log *log, uint64_t term, int64_t next);
/* Forget the places of a log before one, and the log if none is left. */
void headrace_aof_drop_before(Index *self, Log *log, Py_ssize_t place);
/* Add a batch that a leader appended; -1 with an exception if memory is exhausted. */
int headrace_aof_note(Index *self, const char *key, Py_ssize_t key_size, Place place, int64_t base);

/* _aof_scan.c: content of the file */
int64_t headrace_aof_signed(const char *at, int bytes);
/* As preadv and pread, without waiting for a disk. */
Py_ssize_t headrace_aof_readv_cached(int fd, const struct iovec *into, int count, int64_t position);
Py_ssize_t headrace_aof_read_cached(int fd, char *into, size_t size, int64_t position);
PyObject *headrace_aof_scan(Index *self, PyObject *args);

#endif
