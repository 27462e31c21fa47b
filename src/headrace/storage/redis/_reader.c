/* headrace.storage.redis._reader: parses replies of Redis (RESP2) in the memory that received them.
 *
 * Bytes are received into chunks. Large values can be views of their chunk, which avoids a copy. A chunk without views
 * is reused; any other chunk belongs to its views.
 * Optional: `protocol.py` does the same with copies. Tests compare both. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { DEEPEST = 9 };               /* nested arrays, as in hiredis */
enum { LEAST_ROOM = 128 << 10};     /* minimum bytes for a read */
enum { LEAST_VIEW = 2048 };         /* smaller values are copied: a view keeps its whole chunk */
static const int64_t LARGEST = (int64_t)1 << 40;

typedef struct {
    PyObject_HEAD
    PyObject *error;     /* creates the reply for an error */
    PyObject *pending;   /* result for an incomplete reply */
    PyObject *malformed; /* exception for invalid RESP */
    PyObject *chunk;     /* a bytearray */
    PyObject *view;      /* memoryview of the chunk, parent of all others */
    char *data;
    Py_ssize_t size, start, end; /* of the chunk; received bytes to parse are from start to end */
    Py_ssize_t chunk_size;
    Py_ssize_t wanted;           /* bytes from start of the incomplete value */
    int depth;
    struct {
        PyObject *list;
        Py_ssize_t filled;
    } open[DEEPEST];
} Reader;

static int is_shared(Reader *self)
{
    return ((PyMemoryViewObject *)self->view)->mbuf->exports > 1;
}

/* Continue in a new chunk of `size` bytes, with the bytes that are not parsed. */
static int renew(Reader *self, Py_ssize_t size)
{
    PyObject *chunk = PyByteArray_FromStringAndSize(NULL, size);
    if (!chunk)
        return -1;
    PyObject *view = PyMemoryView_FromObject(chunk);
    if (!view) {
        Py_DECREF(chunk);
        return -1;
    }
    char *data = PyByteArray_AS_STRING(chunk);
    if (self->end > self->start)
        memcpy(data, self->data + self->start, (size_t)(self->end - self->start));
    self->end -= self->start;
    self->start = 0;
    self->data = data;
    self->size = size;
    Py_XSETREF(self->chunk, chunk);
    Py_XSETREF(self->view, view);
    return 0;
}

static PyObject *cut(Reader *self, Py_ssize_t start, Py_ssize_t end)
{
    PyObject *from = PyLong_FromSsize_t(start), *to = PyLong_FromSsize_t(end), *slice = NULL, *made = NULL;
    if (from && to && (slice = PySlice_New(from, to, NULL)))
        made = PyObject_GetItem(self->view, slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    return made;
}

static PyObject *reader_room(Reader *self, PyObject *Py_UNUSED(ignored))
{
    if (self->start == self->end && !is_shared(self))
        self->start = self->end = 0;
    Py_ssize_t needed = self->end + LEAST_ROOM;
    if (needed < self->start + self->wanted)
        needed = self->start + self->wanted;
    if (needed > self->size) {
        Py_ssize_t size = self->wanted + LEAST_ROOM;
        if (size < self->end - self->start + LEAST_ROOM)
            size = self->end - self->start + LEAST_ROOM;
        if (renew(self, size < self->chunk_size ? self->chunk_size : size) < 0)
            return NULL;
    }
    return cut(self, self->end, self->size);
}

static PyObject *reader_received(Reader *self, PyObject *argument)
{
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (count < 0 || count > self->size - self->end) {
        PyErr_SetString(PyExc_ValueError, "more bytes than there was room for");
        return NULL;
    }
    self->end += count;
    Py_RETURN_NONE;
}

static PyObject *refuse(Reader *self, const char *reason)
{
    PyErr_SetString(self->malformed, reason);
    return NULL;
}

static int number_of(const char *at, const char *end, int64_t *number)
{
    int negative = at < end && *at == '-';
    int64_t value = 0;
    at += negative;
    if (at == end || end - at > 19)
        return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return -1;
        /* Negative, because that range has one more number. */
        if (value < (INT64_MIN + (*at - '0')) / 10)
            return -1;
        value = value * 10 - (*at - '0');
    }
    if (!negative && value == INT64_MIN)
        return -1;
    *number = negative ? value : -value;
    return 0;
}

/* Return the value at `start` as a new reference; `*opened` is set for a list to fill.
 * NULL without an exception: it is incomplete. */
static PyObject *next_value(Reader *self, int views, int *opened)
{
    const char *at = self->data + self->start, *limit = self->data + self->end;
    const char *line_end = at < limit ? memchr(at, '\r', (size_t)(limit - at)) : NULL;
    int64_t number;
    PyObject *made;
    self->wanted = 0;
    if (!line_end || line_end + 1 >= limit)
        return NULL;
    if (line_end[1] != '\n')
        return refuse(self, "a line that does not end as one");
    const char *text = at + 1;
    const char *behind = line_end + 2;
    switch (*at) {
    case '+':
        made = PyBytes_FromStringAndSize(text, line_end - text);
        break;
    case '-': {
        PyObject *words = PyUnicode_DecodeUTF8(text, line_end - text, "replace");
        if (!words)
            return NULL;
        made = PyObject_CallOneArg(self->error, words);
        Py_DECREF(words);
        break;
    }
    case ':':
        if (number_of(text, line_end, &number) < 0)
            return refuse(self, "an integer that is none");
        made = PyLong_FromLongLong(number);
        break;
    case '$':
        if (number_of(text, line_end, &number) < 0 || number < -1 || number > LARGEST)
            return refuse(self, "a length that is none");
        if (number == -1) {
            made = Py_NewRef(Py_None);
            break;
        }
        if (limit - behind < number + 2) {
            self->wanted = (behind - at) + (Py_ssize_t)number + 2;
            return NULL;
        }
        if (behind[number] != '\r' || behind[number + 1] != '\n')
            return refuse(self, "a value that is longer than it says");
        made = views && number >= LEAST_VIEW
                   ? cut(self, behind - self->data, behind - self->data + (Py_ssize_t)number)
                   : PyBytes_FromStringAndSize(behind, (Py_ssize_t)number);
        behind += number + 2;
        break;
    case '*':
        if (number_of(text, line_end, &number) < 0 || number < -1 || number > INT32_MAX)
            return refuse(self, "a count that is none");
        if (number == -1) {
            made = Py_NewRef(Py_None);
            break;
        }
        if (number && self->depth == DEEPEST)
            return refuse(self, "lists in lists without end");
        made = PyList_New((Py_ssize_t)number);
        *opened = number > 0;
        break;
    default:
        return refuse(self, "bytes that begin no value");
    }
    if (made)
        self->start = behind - self->data;
    return made;
}

static PyObject *reader_gets(Reader *self, PyObject *argument)
{
    int views = PyObject_IsTrue(argument);
    if (views < 0)
        return NULL;
    for (;;) {
        int opened = 0;
        PyObject *value = next_value(self, views, &opened);
        if (!value)
            return PyErr_Occurred() ? NULL : Py_NewRef(self->pending);
        if (opened) {
            self->open[self->depth].list = value;
            self->open[self->depth].filled = 0;
            self->depth++;
            continue;
        }
        for (;;) {
            if (!self->depth)
                return value;
            PyObject *list = self->open[self->depth - 1].list;
            PyList_SET_ITEM(list, self->open[self->depth - 1].filled++, value);
            if (self->open[self->depth - 1].filled < PyList_GET_SIZE(list))
                break;
            self->depth--;
            self->open[self->depth].list = NULL;
            value = list;
        }
    }
}

static int reader_traverse(Reader *self, visitproc visit, void *arg)
{
    Py_VISIT(self->error);
    Py_VISIT(self->pending);
    Py_VISIT(self->malformed);
    for (int level = 0; level < self->depth; level++)
        Py_VISIT(self->open[level].list);
    return 0;
}

static int reader_clear(Reader *self)
{
    Py_CLEAR(self->error);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->malformed);
    while (self->depth) {
        self->depth--;
        Py_CLEAR(self->open[self->depth].list);
    }
    return 0;
}

static void reader_dealloc(Reader *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    Py_XDECREF(self->view);
    Py_XDECREF(self->chunk);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"pending", "error", "malformed", "chunk", NULL};
    PyObject *pending, *error, *malformed;
    Py_ssize_t chunk;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOn", names, &pending, &error, &malformed, &chunk))
        return NULL;
    if (chunk < LEAST_ROOM)
        chunk = LEAST_ROOM;
    Reader *self = (Reader *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->pending = Py_NewRef(pending);
    self->error = Py_NewRef(error);
    self->malformed = Py_NewRef(malformed);
    self->chunk_size = chunk;
    if (renew(self, chunk) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef reader_methods[] = {
    {"room", (PyCFunction)reader_room, METH_NOARGS, "room(): where the next bytes go."},
    {"received", (PyCFunction)reader_received, METH_O, "received(count): so many bytes were put there."},
    {"gets", (PyCFunction)reader_gets, METH_O,
     "gets(views): the next whole reply, or `pending`; `views`: its large values are views instead of copies."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "Reader(pending, error, malformed, chunk): reads replies of Redis."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_methods, reader_methods},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "headrace.storage.redis._reader.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = reader_slots,
};

static int add_reader(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &reader_spec, NULL);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Reader", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_reader}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.storage.redis._reader",
    .m_doc = "Replies of Redis, read from the memory they arrive in.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__reader(void)
{
    return PyModuleDef_Init(&definition);
}
