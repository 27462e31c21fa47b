/* Records of many batches in the buffers of Arrow columns, without a Python object per record. */

#include "_compiled.h"

#include <structmember.h>

typedef struct {
    Buffer validity;
    Buffer offsets; /* int32, one more than rows */
    Buffer data;
    Py_ssize_t nulls;
} BytesColumn;

enum { KEY, VALUE, HEADER_KEY, HEADER_VALUE, BYTES_COLUMNS };

typedef struct {
    PyObject_HEAD
    Py_ssize_t max_rows;
    Py_ssize_t max_bytes;
    int with_headers;
    Py_ssize_t rows;
    Py_ssize_t size; /* bytes in all columns, roughly */
    BytesColumn bytes_columns[BYTES_COLUMNS];
    Buffer offset;         /* int64 */
    Buffer timestamp;      /* int64, microseconds */
    Buffer timestamp_type; /* int32 */
    Buffer list_validity;  /* headers of each row: null when it has none */
    Buffer list_offsets;
    Py_ssize_t list_nulls;
    int32_t header_rows;
    /* the batch being read */
    Py_buffer payload;
    Walk walk;
    int64_t base_offset;
    int64_t base_timestamp;
    int log_append_time;
    int64_t first_offset;
    int64_t end_offset;
} Columns;

static const Py_ssize_t FIXED_ROW_BYTES = 4 + 4 + 8 + 8 + 4;
static const Py_ssize_t FIXED_HEADER_BYTES = 4 + 4;

static inline void put_bit(Buffer *buffer, Py_ssize_t index, int bit)
{
    if (index % 8 == 0)
        PyBytes_AS_STRING(buffer->bytes)[buffer->used++] = 0;
    PyBytes_AS_STRING(buffer->bytes)[index / 8] |= (char)(bit << (index % 8));
}

static int reserve_rows(Buffer *validity, Buffer *offsets, Py_ssize_t rows)
{
    if (reserve(validity, (size_t)rows / 8 + 1) < 0 || reserve(offsets, ((size_t)rows + 1) * 4) < 0)
        return -1;
    if (offsets->used == 0)
        put(offsets, &(int32_t){0}, 4);
    return 0;
}

static inline int put_bytes(BytesColumn *column, Py_ssize_t row, const uint8_t *data, int32_t size)
{
    if (size > 0) {
        if (reserve(&column->data, (size_t)size) < 0)
            return -1;
        put(&column->data, data, (size_t)size);
    }
    int32_t end = (int32_t)column->data.used;
    put(&column->offsets, &end, 4);
    put_bit(&column->validity, row, size >= 0);
    column->nulls += size < 0;
    return 0;
}

static int is_ascii(const uint8_t *data, int32_t size)
{
    uint8_t all = 0;
    for (int32_t index = 0; index < size; index++)
        all |= data[index];
    return all < 128;
}

/* Header keys are text; bytes that are not UTF-8 become U+FFFD, as in Java's clients. */
static int put_text(BytesColumn *column, Py_ssize_t row, const uint8_t *data, int32_t size)
{
    if (is_ascii(data, size))
        return put_bytes(column, row, data, size);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)data, size, "replace");
    if (!text)
        return -1;
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    int result = -1;
    if (utf8 && length > INT32_MAX - (Py_ssize_t)column->data.used)
        PyErr_SetString(headrace_corrupt_batch, "a header key of more than 700 MB that is not UTF-8");
    else if (utf8)
        result = put_bytes(column, row, (const uint8_t *)utf8, (int32_t)length);
    Py_DECREF(text);
    return result;
}

static int put_headers(Columns *self, const Record *record)
{
    const uint8_t *at = record->headers;
    BytesColumn *keys = &self->bytes_columns[HEADER_KEY];
    BytesColumn *values = &self->bytes_columns[HEADER_VALUE];
    if (reserve_rows(&keys->validity, &keys->offsets, record->header_count) < 0
        || reserve_rows(&values->validity, &values->offsets, record->header_count) < 0)
        return -1;
    for (int32_t index = 0; index < record->header_count; index++, self->header_rows++) {
        Header header;
        at = headrace_read_header(at, record, &header);
        if (put_text(keys, self->header_rows, header.key, header.key_size) < 0
            || put_bytes(values, self->header_rows, header.value, header.value_size) < 0)
            return -1;
    }
    put(&self->list_offsets, &self->header_rows, 4);
    put_bit(&self->list_validity, self->rows, record->header_count > 0);
    self->list_nulls += record->header_count == 0;
    return 0;
}

static inline int64_t microseconds(int64_t milliseconds)
{
    if (milliseconds > INT64_MAX / 1000)
        return INT64_MAX;
    if (milliseconds < INT64_MIN / 1000)
        return INT64_MIN;
    return milliseconds * 1000;
}

static inline int put_record(Columns *self, const Record *record, int64_t offset)
{
    int64_t timestamp = self->base_timestamp;
    int32_t timestamp_type = self->log_append_time;
    if (!self->log_append_time)
        timestamp = headrace_add_wrapping(timestamp, record->timestamp_delta);
    timestamp = microseconds(timestamp);
    if (put_bytes(&self->bytes_columns[KEY], self->rows, record->key, record->key_size) < 0
        || put_bytes(&self->bytes_columns[VALUE], self->rows, record->value, record->value_size) < 0
        || (self->with_headers && put_headers(self, record) < 0))
        return -1;
    put(&self->offset, &offset, 8);
    put(&self->timestamp, &timestamp, 8);
    put(&self->timestamp_type, &timestamp_type, 4);
    self->rows++;
    return 0;
}

static int reserve_columns(Columns *self, Py_ssize_t rows)
{
    for (int column = KEY; column <= VALUE; column++)
        if (reserve_rows(&self->bytes_columns[column].validity, &self->bytes_columns[column].offsets, rows) < 0)
            return -1;
    if (self->with_headers && reserve_rows(&self->list_validity, &self->list_offsets, rows) < 0)
        return -1;
    return reserve(&self->offset, (size_t)rows * 8) < 0 || reserve(&self->timestamp, (size_t)rows * 8) < 0
                   || reserve(&self->timestamp_type, (size_t)rows * 4) < 0
               ? -1
               : 0;
}

/* Bytes of a row, counted as in records/fallback/columns.py, so that both split batches at the same rows. */
static Py_ssize_t row_size(const Columns *self, const Record *record)
{
    Py_ssize_t size = FIXED_ROW_BYTES + (record->key_size > 0 ? record->key_size : 0)
                      + (record->value_size > 0 ? record->value_size : 0);
    if (self->with_headers)
        size += (Py_ssize_t)record->header_count * FIXED_HEADER_BYTES + record->header_bytes;
    return size;
}

/* Read records until the batch ends (1) or the columns are full (0); -1 with an error set. */
static int fill(Columns *self)
{
    Py_ssize_t free_rows = self->max_rows - self->rows;
    if (reserve_columns(self, self->walk.remaining < free_rows ? self->walk.remaining : free_rows) < 0)
        return -1;
    while (self->walk.remaining > 0) {
        Walk before = self->walk;
        Record record;
        if (headrace_next_record(&self->walk, &record) < 0)
            return -1;
        int64_t offset = headrace_add_wrapping(self->base_offset, record.offset_delta);
        if (offset >= self->end_offset)
            return 1; /* later records have higher offsets */
        if (offset < self->first_offset)
            continue;
        Py_ssize_t size = row_size(self, &record);
        if (self->rows > 0 && (self->rows >= self->max_rows || self->size + size > self->max_bytes)) {
            self->walk = before;
            return 0;
        }
        if (put_record(self, &record, offset) < 0)
            return -1;
        self->size += size;
    }
    return headrace_walk_ended(&self->walk) < 0 ? -1 : 1;
}

static void close_batch(Columns *self)
{
    if (self->payload.obj)
        PyBuffer_Release(&self->payload);
    self->payload.obj = NULL;
    self->walk.remaining = 0;
    self->walk.at = self->walk.end = NULL;
}

static void empty(Columns *self)
{
    for (int column = 0; column < BYTES_COLUMNS; column++) {
        drop(&self->bytes_columns[column].validity);
        drop(&self->bytes_columns[column].offsets);
        drop(&self->bytes_columns[column].data);
        self->bytes_columns[column].nulls = 0;
    }
    Buffer *others[] = {&self->offset, &self->timestamp, &self->timestamp_type, &self->list_validity,
                        &self->list_offsets};
    for (size_t index = 0; index < sizeof others / sizeof *others; index++)
        drop(others[index]);
    self->rows = self->size = self->list_nulls = 0;
    self->header_rows = 0;
}

static int columns_init(Columns *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"max_rows", "max_bytes", "include_headers", NULL};
    Py_ssize_t max_rows, max_bytes;
    int with_headers;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "nnp:Columns", names, &max_rows, &max_bytes, &with_headers))
        return -1;
    /* Offsets in a column are int32; a single record larger than max_bytes is at most this large as well. */
    if (max_rows < 1 || max_rows > 1 << 24 || max_bytes < 1 || max_bytes > 1 << 30) {
        PyErr_SetString(PyExc_ValueError, "Columns: 1 to 16777216 rows, 1 to 1073741824 bytes");
        return -1;
    }
    close_batch(self);
    empty(self);
    self->max_rows = max_rows;
    self->max_bytes = max_bytes;
    self->with_headers = with_headers;
    return 0;
}

static void columns_dealloc(Columns *self)
{
    close_batch(self);
    empty(self);
    for (int column = 0; column < BYTES_COLUMNS; column++)
        for (int spare = 0; spare < SPARES; spare++)
            Py_CLEAR(self->bytes_columns[column].data.spares[spare]);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *columns_open(Columns *self, PyObject *args)
{
    Py_buffer payload;
    int count, last_offset_delta, log_append_time;
    long long base_offset, base_timestamp, first_offset, end_offset;
    if (!PyArg_ParseTuple(args, "y*iiLLpLL:open", &payload, &count, &last_offset_delta, &base_offset, &base_timestamp,
                          &log_append_time, &first_offset, &end_offset))
        return NULL;
    close_batch(self);
    if (headrace_start_walk(&self->walk, &payload, count, last_offset_delta) < 0) {
        PyBuffer_Release(&payload);
        return NULL;
    }
    self->payload = payload;
    self->base_offset = base_offset;
    self->base_timestamp = base_timestamp;
    self->log_append_time = log_append_time;
    self->first_offset = first_offset;
    self->end_offset = end_offset;
    Py_RETURN_NONE;
}

static PyObject *columns_fill(Columns *self, PyObject *Py_UNUSED(ignored))
{
    if (!self->payload.obj)
        Py_RETURN_TRUE;
    int ended = fill(self);
    if (ended != 0)
        close_batch(self);
    if (ended < 0) {
        empty(self); /* a row may be incomplete */
        return NULL;
    }
    return PyBool_FromLong(ended);
}

/* As `take`, but return a view of a large buffer that is nearly full, and reuse it after its release. */
static PyObject *take_sparing(Buffer *buffer)
{
    size_t capacity = buffer->bytes ? (size_t)PyBytes_GET_SIZE(buffer->bytes) : 0;
    if (capacity < WORTH_SPARING || buffer->used < capacity / 4 * 3)
        return take(buffer);
    PyObject *all = PyMemoryView_FromObject(buffer->bytes);
    PyObject *view = all ? PySequence_GetSlice(all, 0, (Py_ssize_t)buffer->used) : NULL;
    Py_XDECREF(all);
    if (!view)
        return NULL;
    buffer->usual = buffer->used + buffer->used / 8;
    PyObject **oldest = &buffer->spares[0];
    for (int index = 0; index < SPARES; index++)
        if (!buffer->spares[index] || Py_REFCNT(buffer->spares[index]) == 1)
            oldest = &buffer->spares[index];
    Py_XSETREF(*oldest, buffer->bytes);
    buffer->bytes = NULL;
    buffer->used = 0;
    return view;
}

static PyObject *take_validity(Buffer *buffer, Py_ssize_t nulls)
{
    if (nulls)
        return take(buffer);
    drop(buffer);
    Py_RETURN_NONE;
}

static PyObject *take_bytes_column(BytesColumn *column)
{
    return Py_BuildValue("(NNN)", take_validity(&column->validity, column->nulls), take(&column->offsets),
                         take_sparing(&column->data));
}

static PyObject *columns_take(Columns *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *headers;
    if (self->with_headers)
        headers = Py_BuildValue("(NNNNi)", take_validity(&self->list_validity, self->list_nulls),
                                take(&self->list_offsets), take_bytes_column(&self->bytes_columns[HEADER_KEY]),
                                take_bytes_column(&self->bytes_columns[HEADER_VALUE]), (int)self->header_rows);
    else
        headers = Py_NewRef(Py_None);
    PyObject *taken = Py_BuildValue("(nNNNNNN)", self->rows, take_bytes_column(&self->bytes_columns[KEY]),
                                    take_bytes_column(&self->bytes_columns[VALUE]), take(&self->offset),
                                    take(&self->timestamp), take(&self->timestamp_type), headers);
    empty(self);
    return taken;
}

static PyMethodDef columns_methods[] = {
    {"open", (PyCFunction)columns_open, METH_VARARGS,
     "open(payload, count, last_offset_delta, base_offset, base_timestamp, log_append_time, first_offset, end_offset)"},
    {"fill", (PyCFunction)columns_fill, METH_NOARGS, "Whether the batch has been used up; otherwise: take(), again."},
    {"take", (PyCFunction)columns_take, METH_NOARGS, "The buffers of all columns; the columns are empty then."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef columns_members[] = {
    {"rows", T_PYSSIZET, offsetof(Columns, rows), READONLY, "Rows in the columns."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject headrace_columns_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace.records._compiled.Columns",
    .tp_basicsize = sizeof(Columns),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Arrow buffers of the records of many batches.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)columns_init,
    .tp_dealloc = (destructor)columns_dealloc,
    .tp_methods = columns_methods,
    .tp_members = columns_members,
};
