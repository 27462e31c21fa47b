/* REST response to a body of messages: an entry for each, as in records/fallback/messages.py. */

#include "_compiled.h"

typedef struct {
    const char *before;
    Py_ssize_t before_size;
    long long offset; /* offset of the partition's next message; negative: only the text before */
    const char *after;
    Py_ssize_t after_size;
} Told;

enum { OFFSET_ROOM = 20 };

static char *write_offset(char *to, int64_t number)
{
    char digits[OFFSET_ROOM];
    int used = 0;
    do
        digits[used++] = (char)('0' + number % 10);
    while (number /= 10);
    while (used)
        *to++ = digits[--used];
    return to;
}

/* The texts of a place. The first ones are for left-out messages, whose place is -1. */
static inline Told *told_of(Told *told, Py_ssize_t texts, int32_t place)
{
    Py_ssize_t index = (Py_ssize_t)place + 1;
    return index >= 0 && index < texts && told[index].before ? &told[index] : NULL;
}

/* Maximum bytes of the entries, or -1 for a place without texts. */
static Py_ssize_t most_of(const int32_t *places, Py_ssize_t count, Told *told, Py_ssize_t texts)
{
    Py_ssize_t most = 0;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Told *text = told_of(told, texts, places[index]);
        if (!text)
            return -1;
        most += text->before_size + OFFSET_ROOM + text->after_size + 1;
    }
    return most;
}

static char *write_receipts(char *to, const int32_t *places, Py_ssize_t count, Told *told, Py_ssize_t texts)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        Told *text = told_of(told, texts, places[index]);
        if (index)
            *to++ = ',';
        memcpy(to, text->before, (size_t)text->before_size);
        to += text->before_size;
        if (text->offset >= 0) {
            to = write_offset(to, text->offset++);
            memcpy(to, text->after, (size_t)text->after_size);
            to += text->after_size;
        }
    }
    return to;
}

static PyObject *receipts_of(const Py_buffer *places, Told *told, Py_ssize_t texts, const Py_buffer *head,
                             const Py_buffer *tail)
{
    const int32_t *numbers = places->buf;
    Py_ssize_t count = places->len / (Py_ssize_t)sizeof *numbers;
    Py_ssize_t most = most_of(numbers, count, told, texts);
    if (most < 0) {
        PyErr_SetString(PyExc_ValueError, "receipts: a place without a result");
        return NULL;
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, head->len + most + tail->len);
    if (!out)
        return NULL;
    char *start = PyBytes_AS_STRING(out);
    PyThreadState *others = most > LARGE_BODY ? PyEval_SaveThread() : NULL;
    memcpy(start, head->buf, (size_t)head->len);
    char *end = write_receipts(start + head->len, numbers, count, told, texts);
    memcpy(end, tail->buf, (size_t)tail->len);
    end += tail->len;
    if (others)
        PyEval_RestoreThread(others);
    _PyBytes_Resize(&out, end - start);
    return out;
}

/* receipts(places, told, head, tail): an entry for each place, with commas, between head and tail. told[place + 1]
 * is None, or (before, offset, after). The offset rises with each message of the place. If it is negative, the entry
 * is `before`. */
PyObject *headrace_receipts(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer places, head, tail;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "y*O!y*y*:receipts", &places, &PyList_Type, &list, &head, &tail))
        return NULL;
    Py_ssize_t size = PyList_GET_SIZE(list);
    Told *told = PyMem_Calloc((size_t)size + 1, sizeof *told);
    int failed = !told;
    if (failed)
        PyErr_NoMemory();
    for (Py_ssize_t index = 0; !failed && index < size; index++) {
        PyObject *entry = PyList_GET_ITEM(list, index);
        if (entry == Py_None)
            continue;
        if (!PyTuple_Check(entry)) {
            PyErr_SetString(PyExc_TypeError, "receipts: told are None or tuples (bytes, int, bytes)");
            failed = 1;
            break;
        }
        Told *each = &told[index];
        failed = !PyArg_ParseTuple(entry, "y#Ly#:receipts", &each->before, &each->before_size, &each->offset,
                                   &each->after, &each->after_size);
    }
    PyObject *out = failed ? NULL : receipts_of(&places, told, size, &head, &tail);
    PyMem_Free(told);
    PyBuffer_Release(&places);
    PyBuffer_Release(&head);
    PyBuffer_Release(&tail);
    return out;
}
