/* Known batches by their logs' keys. Those of a log are consecutive. */

#include "_aof.h"
#include <string.h>

enum { LEAST_BUCKETS = 64 };

static uint64_t hash_of(const char *key, Py_ssize_t size)
{
    uint64_t hash = 14695981039346656037u;
    for (Py_ssize_t index = 0; index < size; index++)
        hash = (hash ^ (unsigned char)key[index]) * 1099511628211u;
    return hash ^ hash >> 29;
}

static Log **slot_of(Index *self, const char *key, Py_ssize_t size, uint64_t hash)
{
    Log **slot = &self->buckets[hash & (self->bucket_count - 1)];
    while (*slot && ((*slot)->hash != hash || (*slot)->key_size != size || memcmp((*slot)->key, key, (size_t)size)))
        slot = &(*slot)->chained;
    return slot;
}

Log *headrace_aof_log(Index *self, const char *key, Py_ssize_t size)
{
    return self->logs ? *slot_of(self, key, size, hash_of(key, size)) : NULL;
}

static void forget(Index *self, Log *log)
{
    Log **slot = slot_of(self, log->key, log->key_size, log->hash);
    *slot = log->chained;
    self->logs--;
    self->places -= log->end - log->start;
    PyMem_Free(log->places);
    PyMem_Free(log);
}

void headrace_aof_forget(Index *self, const char *key, Py_ssize_t size)
{
    Log *log = headrace_aof_log(self, key, size);
    if (log)
        forget(self, log);
}

void headrace_aof_forget_all(Index *self)
{
    for (size_t index = 0; index < self->bucket_count; index++)
        while (self->buckets[index])
            forget(self, self->buckets[index]);
}

int headrace_aof_widen(Index *self)
{
    size_t count = self->bucket_count ? self->bucket_count * 2 : LEAST_BUCKETS;
    Log **buckets = PyMem_Calloc(count, sizeof(Log *));
    if (!buckets)
        return -1;
    for (size_t index = 0; index < self->bucket_count; index++) {
        Log *log = self->buckets[index];
        while (log) {
            Log *following = log->chained, **slot = &buckets[log->hash & (count - 1)];
            log->chained = *slot;
            *slot = log;
            log = following;
        }
    }
    PyMem_Free(self->buckets);
    self->buckets = buckets;
    self->bucket_count = count;
    return 0;
}

int headrace_aof_is_before(const Place *place, uint64_t term, int64_t next)
{
    return place->term < term || (place->term == term && place->next < next);
}

/* Return the first place of a log at or after an entry id. */
Py_ssize_t headrace_aof_place_from(const Log *log, uint64_t term, int64_t next)
{
    Py_ssize_t low = log->start, high = log->end;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (headrace_aof_is_before(&log->places[middle], term, next))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Forget the places of a log before one, and the log if none is left. */
void headrace_aof_drop_before(Index *self, Log *log, Py_ssize_t place)
{
    if (place == log->end) {
        forget(self, log);
        return;
    }
    if (place > log->start) {
        log->base = log->places[place - 1].next;
        log->before = log->places[place - 1].term;
        self->places -= place - log->start;
        log->start = place;
    }
}

/* Forget the earliest places in the file, of all logs, until a quarter of the room is free. */
static void thin_out(Index *self)
{
    int64_t floor = INT64_MAX;
    for (size_t index = 0; index < self->bucket_count; index++)
        for (Log *log = self->buckets[index]; log; log = log->chained)
            if (log->places[log->start].position < floor)
                floor = log->places[log->start].position;
    while (self->places > self->most - self->most / 4) {
        floor += (self->position - floor) / 2 + 1;
        for (size_t index = 0; index < self->bucket_count; index++) {
            Log *log = self->buckets[index];
            while (log) {
                Log *following = log->chained;
                Py_ssize_t low = log->start, high = log->end;
                while (low < high) {
                    Py_ssize_t middle = low + (high - low) / 2;
                    if (log->places[middle].position < floor)
                        low = middle + 1;
                    else
                        high = middle;
                }
                headrace_aof_drop_before(self, log, low);
                log = following;
            }
        }
    }
}

/* Add a batch that a leader appended; -1 with an exception without memory. */
int headrace_aof_note(Index *self, const char *key, Py_ssize_t key_size, Place place, int64_t base)
{
    uint64_t hash = hash_of(key, key_size);
    if (self->logs >= self->bucket_count && headrace_aof_widen(self) < 0)
        goto no_memory;
    Log *log = *slot_of(self, key, key_size, hash);
    if (log) {
        const Place *last = &log->places[log->end - 1];
        int overlaps = base < last->next;
        int follows = base == last->next && headrace_aof_is_before(last, place.term, place.next);
        if (!follows) {
            forget(self, log);
            log = NULL;
        }
        if (overlaps)
            return 0;
    }
    if (!log) {
        log = PyMem_Calloc(1, sizeof(Log) + (size_t)key_size);
        if (!log)
            goto no_memory;
        log->room = 4;
        log->places = PyMem_Malloc(sizeof(Place) * (size_t)log->room);
        if (!log->places) {
            PyMem_Free(log);
            goto no_memory;
        }
        log->hash = hash;
        log->base = base;
        log->before = -1;
        log->key_size = key_size;
        memcpy(log->key, key, (size_t)key_size);
        Log **slot = &self->buckets[hash & (self->bucket_count - 1)];
        log->chained = *slot;
        *slot = log;
        self->logs++;
    }
    if (log->end == log->room) {
        if (log->start >= log->room / 2) {
            memmove(log->places, log->places + log->start, sizeof(Place) * (size_t)(log->end - log->start));
            log->end -= log->start;
            log->start = 0;
        } else {
            Py_ssize_t room = log->room + log->room / 2;
            Place *places = PyMem_Realloc(log->places, sizeof(Place) * (size_t)room);
            if (!places)
                goto no_memory;
            log->places = places;
            log->room = room;
        }
    }
    log->places[log->end++] = place;
    if (++self->places > self->most)
        thin_out(self);
    return 0;
no_memory:
    headrace_aof_forget_all(self);
    PyErr_NoMemory();
    return -1;
}
