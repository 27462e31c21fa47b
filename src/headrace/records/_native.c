/* headrace.records._native: what is too slow in Python. The module, and the check of a batch's header.
 *
 * Optional: without it `plain.py` and aiokafka's compiled code do the same. The rules here are those of plain.py,
 * message by message; tests hold the two against each other.
 */

#include "_native.h"

PyObject *headrace_corrupt_batch;
static PyObject *unsupported_magic;
static PyObject *invalid_batch;
static PyObject *unknown_codec;

enum { HEADER_SIZE = 61, BEFORE_LENGTH_ENDS = 12, MAGIC_AT = 16, CRC_AT = 17, ATTRIBUTES_AT = 21 };
enum { CODEC = 7, LAST_CODEC = 4, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

typedef struct {
    int64_t base_offset;
    int32_t batch_length;
    int32_t leader_epoch;
    int8_t magic;
    uint32_t crc;
    int16_t attributes;
    int32_t last_offset_delta;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int32_t count;
} BatchHeader;

static uint16_t read16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t read32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int64_t read64(const uint8_t *at)
{
    return (int64_t)((uint64_t)read32(at) << 32 | read32(at + 4));
}

static int read_header(const uint8_t *batch, Py_ssize_t size, BatchHeader *header)
{
    if (size <= MAGIC_AT) {
        PyErr_Format(headrace_corrupt_batch, "%zd bytes are no record batch", size);
        return -1;
    }
    int64_t length = (int32_t)read32(batch + 8);
    int magic = (int8_t)batch[MAGIC_AT];
    if (magic == 0 || magic == 1)
        PyErr_Format(unsupported_magic, "message format with magic %d; only record batches (magic 2) are taken", magic);
    else if (magic != 2)
        PyErr_Format(headrace_corrupt_batch, "magic %d does not exist", magic);
    else if (size < HEADER_SIZE || length < HEADER_SIZE - BEFORE_LENGTH_ENDS)
        PyErr_Format(headrace_corrupt_batch, "%zd bytes with batch length %lld: shorter than a batch header", size,
                     (long long)length);
    else if (length + BEFORE_LENGTH_ENDS > size)
        PyErr_Format(headrace_corrupt_batch, "batch length %lld wants %lld bytes, there are %zd", (long long)length,
                     (long long)length + BEFORE_LENGTH_ENDS, size);
    else if (length + BEFORE_LENGTH_ENDS < size)
        PyErr_Format(invalid_batch, "%lld bytes after the batch; exactly one batch is taken",
                     (long long)size - length - BEFORE_LENGTH_ENDS);
    else {
        *header = (BatchHeader){
            .base_offset = read64(batch),
            .batch_length = (int32_t)length,
            .leader_epoch = (int32_t)read32(batch + 12),
            .magic = (int8_t)magic,
            .crc = read32(batch + CRC_AT),
            .attributes = (int16_t)read16(batch + ATTRIBUTES_AT),
            .last_offset_delta = (int32_t)read32(batch + 23),
            .base_timestamp = read64(batch + 27),
            .max_timestamp = read64(batch + 35),
            .producer_id = read64(batch + 43),
            .producer_epoch = (int16_t)read16(batch + 51),
            .base_sequence = (int32_t)read32(batch + 53),
            .count = (int32_t)read32(batch + 57),
        };
        return 0;
    }
    return -1;
}

static int crc_differs(const BatchHeader *header, const uint8_t *batch, Py_ssize_t size)
{
    uint32_t found = headrace_crc32c(0, batch + ATTRIBUTES_AT, (size_t)size - ATTRIBUTES_AT);
    if (found == header->crc)
        return 0;
    char message[80];
    PyOS_snprintf(message, sizeof message, "CRC 0x%08x in the header, 0x%08x over the bytes", header->crc, found);
    PyErr_SetString(headrace_corrupt_batch, message);
    return -1;
}

static int breaks_rule(const BatchHeader *header)
{
    if (header->count <= 0 || header->last_offset_delta != header->count - 1)
        PyErr_Format(invalid_batch, "%d records with last offset delta %d", header->count, header->last_offset_delta);
    else if (header->attributes & CONTROL)
        PyErr_SetString(invalid_batch, "the control bit is set; control batches are the broker's");
    else if ((header->attributes & CODEC) > LAST_CODEC)
        PyErr_Format(unknown_codec, "compression codec %d does not exist", header->attributes & CODEC);
    else if (header->producer_id < -1
             || (header->producer_id >= 0 && (header->producer_epoch < 0 || header->base_sequence < 0)))
        PyErr_Format(invalid_batch, "producer %lld with epoch %d and sequence %d", (long long)header->producer_id,
                     header->producer_epoch, header->base_sequence);
    else if (header->attributes & TRANSACTIONAL && header->producer_id < 0)
        PyErr_SetString(invalid_batch, "a transactional batch without producer id");
    else
        return 0;
    return -1;
}

static PyObject *header_tuple(const BatchHeader *header)
{
    PyObject *fields[] = {
        PyLong_FromLongLong(header->base_offset),      PyLong_FromLong(header->batch_length),
        PyLong_FromLong(header->leader_epoch),         PyLong_FromLong(header->magic),
        PyLong_FromUnsignedLong(header->crc),          PyLong_FromLong(header->attributes),
        PyLong_FromLong(header->last_offset_delta),    PyLong_FromLongLong(header->base_timestamp),
        PyLong_FromLongLong(header->max_timestamp),    PyLong_FromLongLong(header->producer_id),
        PyLong_FromLong(header->producer_epoch),       PyLong_FromLong(header->base_sequence),
        PyLong_FromLong(header->count),
    };
    enum { FIELDS = sizeof fields / sizeof *fields };
    PyObject *tuple = PyTuple_New(FIELDS);
    for (Py_ssize_t index = 0; index < FIELDS; index++) {
        if (!fields[index])
            Py_CLEAR(tuple);
        if (tuple)
            PyTuple_SET_ITEM(tuple, index, fields[index]);
        else
            Py_XDECREF(fields[index]);
    }
    return tuple;
}

static PyObject *native_check(PyObject *Py_UNUSED(module), PyObject *batch)
{
    Py_buffer view;
    BatchHeader header;
    if (PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int refused = read_header(view.buf, view.len, &header) < 0 || crc_differs(&header, view.buf, view.len) < 0
                  || breaks_rule(&header) < 0;
    PyBuffer_Release(&view);
    return refused ? NULL : header_tuple(&header);
}

static PyObject *native_peek(PyObject *Py_UNUSED(module), PyObject *batch)
{
    Py_buffer view;
    BatchHeader header;
    if (PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int refused = read_header(view.buf, view.len, &header) < 0;
    PyBuffer_Release(&view);
    return refused ? NULL : header_tuple(&header);
}

static PyObject *crc_of(PyObject *args, uint32_t (*function)(uint32_t, const uint8_t *, size_t))
{
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I:crc32c", &data, &crc))
        return NULL;
    uint32_t result = function(crc, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(result);
}

static PyObject *native_crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
    return crc_of(args, headrace_crc32c);
}

static PyObject *native_crc32c_tables(PyObject *Py_UNUSED(module), PyObject *args)
{
    return crc_of(args, headrace_crc32c_tables);
}

static PyMethodDef methods[] = {
    {"check", native_check, METH_O, "The 13 header fields of a batch that a client may append."},
    {"peek", native_peek, METH_O, "The 13 header fields, without looking at the CRC."},
    {"crc32c", native_crc32c, METH_VARARGS, "crc32c(data, crc=0): CRC-32C of the bytes."},
    {"crc32c_tables", native_crc32c_tables, METH_VARARGS, "The same without the processor's instruction."},
    {"encode", headrace_encode, METH_VARARGS, "encode(records, base_timestamp): the records section of a batch."},
    {"publish", headrace_publish, METH_VARARGS,
     "publish(body, partitions, now_ms, seed, left_out, most_value, most_total): places and batches, or None."},
    {"receipts", headrace_receipts, METH_VARARGS, "receipts(places, told, head, tail): an entry for each place."},
    {"records", headrace_records, METH_VARARGS, "The records of a batch as a list of named tuples."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.records._native",
    .m_doc = "Header check, CRC-32C and record decoding in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    headrace_crc32c_prepare();
    headrace_messages_prepare();
    headrace_publish_prepare();
    PyObject *errors = PyImport_ImportModule("headrace.records.errors");
    if (!errors)
        return NULL;
    headrace_corrupt_batch = PyObject_GetAttrString(errors, "CorruptBatch");
    unsupported_magic = PyObject_GetAttrString(errors, "UnsupportedMagic");
    invalid_batch = PyObject_GetAttrString(errors, "InvalidBatch");
    unknown_codec = PyObject_GetAttrString(errors, "UnknownCodec");
    Py_DECREF(errors);
    if (!headrace_corrupt_batch || !unsupported_magic || !invalid_batch || !unknown_codec)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module
        && (PyModule_AddStringConstant(module, "CRC32C", headrace_crc32c_kind()) < 0
            || PyModule_AddType(module, &headrace_columns_type) < 0
            || PyModule_AddType(module, &headrace_messages_type) < 0))
        Py_CLEAR(module);
    return module;
}
