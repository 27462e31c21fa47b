/* headrace.store._resp: writes the commands of an append, which are the same but for some numbers.
 *
 * Optional: `resp.py` does the same without it; tests hold the two against each other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { NUMBER = 1, BULK = 2, PAIR = 3 }; /* bytes of a template that numbers take the place of */
enum { DIGITS = 20 };                     /* of a 64-bit number, with its sign */
enum { LONGEST = 2 + 2 + 2 * DIGITS + 1 + 2 };

static char *put_number(char *at, int64_t value)
{
    char digits[DIGITS];
    int count = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[count++] = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0)
        *at++ = '-';
    while (count)
        *at++ = digits[--count];
    return at;
}

static char *put_bulk(char *at, const char *text, Py_ssize_t size)
{
    *at++ = '$';
    at = put_number(at, size);
    memcpy(at, "\r\n", 2);
    memcpy(at + 2, text, (size_t)size);
    memcpy(at + 2 + size, "\r\n", 2);
    return at + 2 + size + 2;
}

static int next_number(PyObject *const *args, Py_ssize_t count, Py_ssize_t *used, int64_t *number)
{
    if (*used >= count) {
        PyErr_SetString(PyExc_ValueError, "fewer numbers than the template has places");
        return -1;
    }
    *number = PyLong_AsLongLong(args[(*used)++]);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static char *put_place(char *at, int place, PyObject *const *args, Py_ssize_t count, Py_ssize_t *used)
{
    int64_t number;
    char text[2 * DIGITS + 2];
    if (next_number(args, count, used, &number) < 0)
        return NULL;
    if (place == NUMBER)
        return put_number(at, number);
    char *end = put_number(text, number);
    if (place == PAIR) {
        if (next_number(args, count, used, &number) < 0)
            return NULL;
        *end++ = '-';
        end = put_number(end, number);
    }
    return put_bulk(at, text, end - text);
}

static PyObject *resp_fill(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count < 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "fill(prefix: bytes, template: bytes, *numbers: int)");
        return NULL;
    }
    Py_ssize_t prefix_size = PyBytes_GET_SIZE(args[0]), size = PyBytes_GET_SIZE(args[1]), used = 2;
    const char *template = PyBytes_AS_STRING(args[1]);
    PyObject *made = PyBytes_FromStringAndSize(NULL, prefix_size + size + (count - 2) * (Py_ssize_t)LONGEST);
    if (!made)
        return NULL;
    char *at = PyBytes_AS_STRING(made);
    memcpy(at, PyBytes_AS_STRING(args[0]), (size_t)prefix_size);
    at += prefix_size;
    for (Py_ssize_t index = 0; index < size; index++) {
        int byte = template[index];
        if (byte != NUMBER && byte != BULK && byte != PAIR)
            *at++ = (char)byte;
        else if (!(at = put_place(at, byte, args, count, &used))) {
            Py_DECREF(made);
            return NULL;
        }
    }
    if (used < count) {
        PyErr_SetString(PyExc_ValueError, "more numbers than the template has places");
        Py_DECREF(made);
        return NULL;
    }
    _PyBytes_Resize(&made, at - PyBytes_AS_STRING(made));
    return made;
}

static PyMethodDef methods[] = {
    {"fill", (PyCFunction)(void (*)(void))resp_fill, METH_FASTCALL,
     "fill(prefix, template, *numbers): the prefix, then the template with the numbers in their places."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.store._resp",
    .m_doc = "Commands that are the same but for some numbers.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__resp(void)
{
    return PyModule_Create(&definition);
}
