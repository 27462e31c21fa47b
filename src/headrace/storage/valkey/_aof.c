/* headrace.storage.valkey._aof: positions of logs' batches in a local Valkey's append-only file.
 *
 * The file is a sequence of commands (RESP), each written before its reply. `scan` continues at its last position and
 * adds each batch that a leader appended. `read` copies batches from the page cache, and never waits for a disk.
 * Optional: Valkey has all other batches. See `aof.py` for the rules. */

#include "_aof.h"
#include <errno.h>

enum { LEAST_VIEW = 2048 }; /* as in storage/redis/_reader.c */
enum { GAP = 1024 };        /* maximum bytes between two batches that are read together */
enum { AT_ONCE = 256 };     /* batches per system call, which has a limit of 1,024 buffers */

typedef struct {
    int64_t base, next, position;
    Py_ssize_t at; /* in the chunk, where batches are adjacent */
    int32_t size;
} Piece;

static PyObject *cut(PyObject *view, const char *data, Py_ssize_t at, Py_ssize_t size)
{
    if (size < LEAST_VIEW)
        return PyBytes_FromStringAndSize(data + at, size);
    PyObject *from = PyLong_FromSsize_t(at), *to = PyLong_FromSsize_t(at + size);
    PyObject *slice = from && to ? PySlice_New(from, to, NULL) : NULL, *made = NULL;
    if (slice)
        made = PyObject_GetItem(view, slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    return made;
}

/* Read batches that are close in the file, and drop the bytes between. Return their number, 0 if not cached. */
static Py_ssize_t read_run(int fd, char *data, const Piece *pieces, Py_ssize_t count)
{
    char dropped[GAP];
    struct iovec into[2 * AT_ONCE];
    int used = 0;
    Py_ssize_t taken = 0;
    int64_t position = pieces[0].position;
    for (; taken < count && taken < AT_ONCE; taken++) {
        const Piece *piece = &pieces[taken];
        int64_t between = piece->position - position;
        if (between < 0 || between > GAP)
            break;
        if (between)
            into[used++] = (struct iovec){dropped, (size_t)between};
        into[used++] = (struct iovec){data + piece->at, (size_t)piece->size};
        position = piece->position + piece->size;
    }
    return headrace_aof_readv_cached(fd, into, used, pieces[0].position) == position - pieces[0].position ? taken : 0;
}

static int read_pieces(int fd, char *data, const Piece *pieces, Py_ssize_t count)
{
    for (Py_ssize_t done = 0, taken; done < count; done += taken) {
        taken = read_run(fd, data, pieces + done, count - done);
        if (!taken)
            return 0;
    }
    return 1;
}

static int is_expected(const char *data, const Piece *piece)
{
    const char *header = data + piece->at;
    return headrace_aof_signed(header, 8) == piece->base && headrace_aof_signed(header + 8, 4) + 12 == piece->size &&
           headrace_aof_signed(header + 23, 4) + 1 == piece->next - piece->base;
}

/* Return consecutive batches as one Python object. */
static PyObject *joined(PyObject *view, const char *data, const Piece *pieces, Py_ssize_t count)
{
    const Piece *last = &pieces[count - 1];
    PyObject *batch = cut(view, data, pieces->at, last->at + last->size - pieces->at);
    return batch ? Py_BuildValue("LLNn", (long long)pieces->base, (long long)last->next, batch, count) : NULL;
}

/* Return single batches, or all but the last one joined. */
static PyObject *batches_of(PyObject *chunk, const Piece *pieces, Py_ssize_t count, int join)
{
    const char *data = PyByteArray_AS_STRING(chunk);
    Py_ssize_t parts = join && count > 2 ? 2 : count;
    PyObject *view = PyMemoryView_FromObject(chunk), *found = view ? PyList_New(parts) : NULL;
    for (Py_ssize_t part = 0, first = 0; found && part < parts; part++) {
        Py_ssize_t size = parts < count && part == 0 ? count - 1 : 1;
        PyObject *made = joined(view, data, &pieces[first], size);
        first += size;
        if (made)
            PyList_SET_ITEM(found, part, made);
        else
            Py_CLEAR(found);
    }
    Py_XDECREF(view);
    return found;
}

static PyObject *index_read(Index *self, PyObject *args)
{
    int fd, join, more = 0;
    uint32_t term = 0;
    const char *key;
    Py_ssize_t key_size, count, most;
    long long first_term, first_next, last_term, last_next;
    if (!PyArg_ParseTuple(args, "iy#(LL)(LL)nnp", &fd, &key, &key_size, &first_term, &first_next, &last_term, &last_next,
                          &count, &most, &join))
        return NULL;
    Log *log = headrace_aof_log(self, key, key_size);
    if (!log || first_term < 0 || last_term < 0 || first_next < 1)
        Py_RETURN_NONE;
    Py_ssize_t from = headrace_aof_place_from(log, (uint64_t)first_term, first_next), to = from, size = 0;
    /* Unknown entries precede the run. If another program wrote to the log, one of them might hold the offset too.
     * This is impossible if the entry before the place belongs to the run and ends before the offset. */
    int64_t base = from == log->start ? log->base : log->places[from - 1].next;
    int64_t before = from == log->start ? log->before : log->places[from - 1].term;
    if (from == log->end || base >= first_next || before < 0 || before > first_term)
        Py_RETURN_NONE;
    if (count > log->end - from)
        count = log->end - from;
    for (; to < from + count; to++) {
        const Place *place = &log->places[to];
        if (!headrace_aof_is_before(place, (uint64_t)last_term, last_next) &&
            !(place->term == last_term && place->next == last_next))
            break;
        if (to > from && size + place->size > most) {
            more = 1;
            break;
        }
        size += place->size;
        term = place->term;
    }
    if (to == from)
        Py_RETURN_NONE;
    count = to - from;
    Piece *pieces = PyMem_Malloc(sizeof(Piece) * (size_t)count);
    if (!pieces)
        return PyErr_NoMemory();
    Py_ssize_t at = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Place *place = &log->places[from + index];
        pieces[index] = (Piece){base, place->next, place->position, at, place->size};
        at += place->size;
        base = place->next;
    }
    PyObject *found = NULL, *chunk = PyByteArray_FromStringAndSize(NULL, at);
    if (chunk) {
        char *data = PyByteArray_AS_STRING(chunk);
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = read_pieces(fd, data, pieces, count);
        for (Py_ssize_t index = 0; whole && index < count; index++)
            whole = is_expected(data, &pieces[index]);
        Py_END_ALLOW_THREADS
        found = whole ? batches_of(chunk, pieces, count, join) : Py_NewRef(Py_None);
        Py_DECREF(chunk);
    }
    PyMem_Free(pieces);
    if (!found || found == Py_None)
        return found;
    return more ? Py_BuildValue("N(LL)", found, (long long)term, (long long)base + 1)
                : Py_BuildValue("NO", found, Py_None);
}

static PyObject *index_position(Index *self, void *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(self->position);
}

static PyObject *index_places(Index *self, void *Py_UNUSED(ignored))
{
    return PyLong_FromSsize_t(self->places);
}

static void index_dealloc(Index *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->buckets)
        headrace_aof_forget_all(self);
    PyMem_Free(self->buckets);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *index_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"most", NULL};
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n", names, &most))
        return NULL;
    Index *self = (Index *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->most = most < 1 ? 1 : most;
    self->database = -1;
    if (headrace_aof_widen(self) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static PyMethodDef index_methods[] = {
    {"scan", (PyCFunction)headrace_aof_scan, METH_VARARGS, "scan(fd, work): note what has come; how far that went."},
    {"read", (PyCFunction)index_read, METH_VARARGS,
     "read(fd, key, first, last, count, most, join): batches between two entry ids, and where more begin; or None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef index_facts[] = {
    {"position", (getter)index_position, NULL, "Where in the file the next scan begins.", NULL},
    {"places", (getter)index_places, NULL, "How many batches are known.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot index_slots[] = {
    {Py_tp_doc, "Index(most): where at most so many batches lie in one file."},
    {Py_tp_new, index_new},
    {Py_tp_dealloc, index_dealloc},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_facts},
    {0, NULL},
};

static PyType_Spec index_spec = {
    .name = "headrace.storage.valkey._aof.Index",
    .basicsize = sizeof(Index),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = index_slots,
};

static int add_index(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &index_spec, NULL);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Index", type);
    Py_DECREF(type);
    return failed || PyModule_AddIntConstant(module, "AT_END", AT_END) < 0 ||
                   PyModule_AddIntConstant(module, "MORE", MORE) < 0 ||
                   PyModule_AddIntConstant(module, "ABSENT", ABSENT) < 0 ||
                   PyModule_AddIntConstant(module, "UNKNOWN", UNKNOWN) < 0
               ? -1
               : 0;
}

static PyObject *can_read(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long fd = PyLong_AsLong(argument);
    char byte;
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(headrace_aof_read_cached((int)fd, &byte, 1, 0) >= 0 || errno == EAGAIN);
}

static PyMethodDef functions[] = {
    {"can_read", can_read, METH_O, "can_read(fd): whether a file can be read without waiting for its disk."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_index}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.storage.valkey._aof",
    .m_doc = "Where batches lie in the append-only file of a Valkey on this machine.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__aof(void)
{
    return PyModuleDef_Init(&definition);
}
