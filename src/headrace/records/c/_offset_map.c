/* Offsets of keys: open addressing, 24 bytes per slot, with SipHash-2-4 of 128 bits for the key.
 *
 * The type is used by one thread at a time. Other threads can run while it works. */

#include "_clean.h"

enum { SEED_BYTES = 16, FEWEST_SLOTS = 2 };

static inline uint64_t rotate(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static inline void mix(uint64_t state[4], int rounds)
{
    while (rounds--) {
        state[0] += state[1];
        state[2] += state[3];
        state[1] = rotate(state[1], 13) ^ state[0];
        state[3] = rotate(state[3], 16) ^ state[2];
        state[0] = rotate(state[0], 32);
        state[2] += state[1];
        state[0] += state[3];
        state[1] = rotate(state[1], 17) ^ state[2];
        state[3] = rotate(state[3], 21) ^ state[0];
        state[2] = rotate(state[2], 32);
    }
}

/* The hash has 128 bits. Its words are those of this processor, as nothing stores them. */
static void hash_key(const uint64_t seed[2], const uint8_t *key, size_t size, uint64_t hash[2])
{
    uint64_t state[4] = {seed[0] ^ UINT64_C(0x736f6d6570736575), seed[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
                         seed[0] ^ UINT64_C(0x6c7967656e657261), seed[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t last = (uint64_t)size << 56, word;
    const uint8_t *end = key + (size & ~(size_t)7);
    for (; key != end; key += 8) {
        memcpy(&word, key, 8);
        state[3] ^= word;
        mix(state, 2);
        state[0] ^= word;
    }
    for (size_t byte = 0; byte < (size & 7); byte++)
        last |= (uint64_t)key[byte] << 8 * byte;
    state[3] ^= last;
    mix(state, 2);
    state[0] ^= last;
    state[2] ^= 0xee;
    mix(state, 4);
    hash[0] = state[0] ^ state[1] ^ state[2] ^ state[3];
    state[1] ^= 0xdd;
    mix(state, 4);
    hash[1] = state[0] ^ state[1] ^ state[2] ^ state[3];
}

/* The slot of a hash, or the empty one where it belongs. */
static Slot *find_slot(const OffsetMap *map, const uint64_t hash[2])
{
    Slot *slot = map->slots + hash[0] % map->count, *end = map->slots + map->count;
    while (slot->following && (slot->first != hash[0] || slot->second != hash[1]))
        if (++slot == end)
            slot = map->slots;
    return slot;
}

int64_t headrace_offset_of(const OffsetMap *map, const uint8_t *key, int32_t size)
{
    uint64_t hash[2];
    hash_key(map->seed, key, (size_t)size, hash);
    return find_slot(map, hash)->following - 1;
}

int headrace_put_offset(OffsetMap *map, const uint8_t *key, int32_t size, int64_t offset)
{
    uint64_t hash[2];
    hash_key(map->seed, key, (size_t)size, hash);
    Slot *slot = find_slot(map, hash);
    if (!slot->following) {
        if (map->used >= map->limit)
            return -1;
        map->used++;
        slot->first = hash[0];
        slot->second = hash[1];
    }
    if (slot->following <= offset)
        slot->following = offset + 1;
    return 0;
}

typedef struct {
    PyObject_HEAD
    OffsetMap map;
    int busy;
} OffsetMapObject;

static PyObject *new_map(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"slots", "seed", NULL};
    Py_ssize_t slots;
    Py_buffer seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "ny*:OffsetMap", names, &slots, &seed))
        return NULL;
    OffsetMapObject *self = NULL;
    if (slots < FEWEST_SLOTS || seed.len != SEED_BYTES)
        PyErr_Format(PyExc_ValueError, "OffsetMap: %d slots or more, and a seed of %d bytes", FEWEST_SLOTS, SEED_BYTES);
    else
        self = (OffsetMapObject *)type->tp_alloc(type, 0);
    if (self) {
        memcpy(self->map.seed, seed.buf, SEED_BYTES);
        self->map.count = (uint64_t)slots;
        self->map.limit = self->map.count / 10 * 9 + self->map.count % 10 * 9 / 10;
        self->map.slots = PyMem_RawCalloc((size_t)slots, sizeof(Slot)); /* pages are not touched before they are used */
        if (!self->map.slots) {
            Py_CLEAR(self);
            PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&seed);
    return (PyObject *)self;
}

static void free_map(OffsetMapObject *self)
{
    PyMem_RawFree(self->map.slots);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t map_length(OffsetMapObject *self)
{
    return (Py_ssize_t)self->map.used;
}

static PyObject *is_full(OffsetMapObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->map.used >= self->map.limit);
}

static PyObject *memory_bytes(OffsetMapObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->map.count * sizeof(Slot));
}

/* Reserve the map for this thread. Return 0, or -1 with RuntimeError set. */
static int occupy(OffsetMapObject *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "OffsetMap: another thread uses it");
        return -1;
    }
    self->busy = 1;
    return 0;
}

static PyObject *map_get(OffsetMapObject *self, PyObject *key)
{
    Py_buffer view;
    if (PyObject_GetBuffer(key, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = NULL;
    if (view.len > INT32_MAX)
        PyErr_SetString(PyExc_OverflowError, "OffsetMap: a key has 31 bits of length");
    else if (occupy(self) == 0) {
        int64_t offset = headrace_offset_of(&self->map, view.buf, (int32_t)view.len);
        self->busy = 0;
        found = offset < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(offset);
    }
    PyBuffer_Release(&view);
    return found;
}

void headrace_release_batches(Given *given, Py_ssize_t count)
{
    for (Py_ssize_t index = 0; given && index < count; index++) {
        PyBuffer_Release(&given[index].batch); /* nothing where it has no object */
        PyBuffer_Release(&given[index].section);
    }
    PyMem_Free(given);
}

Given *headrace_receive_batches(PyObject *batches, PyObject *sections, const Py_buffer *flags, Py_ssize_t *count)
{
    Py_ssize_t size = PyList_GET_SIZE(batches);
    if (PyList_GET_SIZE(sections) != size || (flags && flags->len != size)) {
        PyErr_SetString(PyExc_ValueError, "OffsetMap: as many sections and flags as batches");
        return NULL;
    }
    Given *given = PyMem_Calloc((size_t)size + 1, sizeof(Given));
    if (!given)
        return (Given *)PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < size; index++) {
        PyObject *section = PyList_GET_ITEM(sections, index);
        given[index].passed_over = flags ? ((const uint8_t *)flags->buf)[index] : 0;
        if (PyObject_GetBuffer(PyList_GET_ITEM(batches, index), &given[index].batch, PyBUF_SIMPLE) < 0
            || (section != Py_None && PyObject_GetBuffer(section, &given[index].section, PyBUF_SIMPLE) < 0)) {
            headrace_release_batches(given, size);
            return NULL;
        }
    }
    *count = size;
    return given;
}

/* Indexes of batches that are marked. */
static PyObject *marked(const uint8_t *marks, Py_ssize_t count, uint8_t mark)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t index = 0; found && index < count; index++) {
        if (marks[index] != mark)
            continue;
        PyObject *number = PyLong_FromSsize_t(index);
        if (!number || PyList_Append(found, number) < 0)
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

static PyObject *map_add(OffsetMapObject *self, PyObject *args)
{
    PyObject *batches, *sections, *result = NULL;
    Py_buffer passed_over;
    Py_ssize_t count = 0, end = 0;
    if (!PyArg_ParseTuple(args, "O!O!y*:add", &PyList_Type, &batches, &PyList_Type, &sections, &passed_over))
        return NULL;
    Given *given = headrace_receive_batches(batches, sections, &passed_over, &count);
    uint8_t *additions = given ? PyMem_Calloc((size_t)count + 1, 1) : NULL;
    if (given && !additions)
        PyErr_NoMemory();
    if (additions && occupy(self) == 0) {
        Py_BEGIN_ALLOW_THREADS
        for (; end < count; end++) {
            additions[end] = (uint8_t)headrace_add_batch(&self->map, &given[end]);
            if (additions[end] == MAP_FULL)
                break;
        }
        Py_END_ALLOW_THREADS
        self->busy = 0;
        PyObject *unreadable = marked(additions, end, NOT_READ);
        if (unreadable)
            result = Py_BuildValue("nN", end, unreadable);
    }
    PyMem_Free(additions);
    headrace_release_batches(given, count);
    PyBuffer_Release(&passed_over);
    return result;
}

PyObject *headrace_remaining_batches(const Given *given, const uint8_t *fates, const size_t *ends, const Bytes *made,
                                     Py_ssize_t count)
{
    PyObject *found = PyList_New(count);
    size_t start = 0;
    for (Py_ssize_t index = 0; found && index < count; index++) {
        PyObject *batch;
        if (fates[index] == CHANGED) {
            batch = PyBytes_FromStringAndSize((const char *)made->data + start, (Py_ssize_t)(ends[index] - start));
            start = ends[index];
        } else {
            batch = Py_NewRef(fates[index] == REMOVED ? Py_None : given[index].batch.obj);
        }
        if (!batch)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, index, batch);
    }
    return found;
}

/* Clean all batches. Return 0, or -1 without memory. */
static int clean_all(Cleaning *cleaning, const Given *given, uint8_t *fates, size_t *ends, Py_ssize_t count)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        Fate fate = headrace_clean_batch(cleaning, &given[index]);
        if (fate == NO_MEMORY)
            return -1;
        fates[index] = (uint8_t)fate;
        ends[index] = cleaning->made.used;
    }
    return 0;
}

static PyObject *cleaned(const Cleaning *cleaning, const Given *given, const uint8_t *fates, const size_t *ends,
                         Py_ssize_t count)
{
    PyObject *batches = headrace_remaining_batches(given, fates, ends, &cleaning->made, count);
    PyObject *unreadable = batches ? marked(fates, count, UNREADABLE) : NULL;
    PyObject *earliest = NULL;
    if (unreadable)
        earliest = cleaning->has_horizon ? PyLong_FromLongLong(cleaning->earliest) : Py_NewRef(Py_None);
    if (!earliest) {
        Py_XDECREF(batches);
        Py_XDECREF(unreadable);
        return NULL;
    }
    return Py_BuildValue("NLLLNN", batches, (long long)cleaning->records_read, (long long)cleaning->records_kept,
                         (long long)cleaning->tombstones, earliest, unreadable);
}

static PyObject *map_clean(OffsetMapObject *self, PyObject *args)
{
    PyObject *batches, *sections, *result = NULL;
    Py_buffer aborted;
    long long now_ms, horizon_ms;
    Py_ssize_t count = 0;
    Cleaning cleaning = {.map = &self->map};
    if (!PyArg_ParseTuple(args, "O!O!y*LLp:clean", &PyList_Type, &batches, &PyList_Type, &sections, &aborted, &now_ms,
                          &horizon_ms, &cleaning.clean_segment))
        return NULL;
    cleaning.now_ms = now_ms;
    cleaning.horizon_ms = horizon_ms;
    Given *given = headrace_receive_batches(batches, sections, &aborted, &count);
    uint8_t *fates = given ? PyMem_Calloc((size_t)count + 1, 1) : NULL;
    size_t *ends = given ? PyMem_Calloc((size_t)count + 1, sizeof(size_t)) : NULL;
    if (given && (!fates || !ends)) {
        PyErr_NoMemory();
    } else if (given && occupy(self) == 0) {
        int done;
        Py_BEGIN_ALLOW_THREADS
        done = clean_all(&cleaning, given, fates, ends, count);
        Py_END_ALLOW_THREADS
        self->busy = 0;
        result = done < 0 ? PyErr_NoMemory() : cleaned(&cleaning, given, fates, ends, count);
    }
    let_go(&cleaning.made);
    let_go(&cleaning.decisions);
    PyMem_Free(fates);
    PyMem_Free(ends);
    headrace_release_batches(given, count);
    PyBuffer_Release(&aborted);
    return result;
}

static PyMethodDef map_methods[] = {
    {"get", (PyCFunction)map_get, METH_O, "The last offset of a key, or None."},
    {"add", (PyCFunction)map_add, METH_VARARGS,
     "add(batches, sections, passed_over): index of the first batch that did not fit, and of those not read."},
    {"clean", (PyCFunction)map_clean, METH_VARARGS,
     "clean(batches, sections, aborted, now_ms, horizon_ms, clean_segment): what remains, and counts."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef map_properties[] = {
    {"full", (getter)is_full, NULL, "Whether there is no place for another key.", NULL},
    {"memory_bytes", (getter)memory_bytes, NULL, "Bytes of all slots.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods map_as_sequence = {.sq_length = (lenfunc)map_length};

PyTypeObject headrace_offset_map_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headrace.records._compiled.OffsetMap",
    .tp_doc = "OffsetMap(slots, seed): the last offset of each key.",
    .tp_basicsize = sizeof(OffsetMapObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_map,
    .tp_dealloc = (destructor)free_map,
    .tp_methods = map_methods,
    .tp_getset = map_properties,
    .tp_as_sequence = &map_as_sequence,
};
