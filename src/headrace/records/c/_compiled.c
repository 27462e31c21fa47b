/* headrace.records._compiled: the module, and its functions for batch headers.
 *
 * Optional: `records/fallback` and aiokafka's compiled code do the same. Tests compare both, messages included. */

#include "_header.h"
#include "_compiled.h"

PyObject *headrace_corrupt_batch;
static PyObject *unsupported_magic;
static PyObject *invalid_batch;
static PyObject *unknown_codec;

/* Raise the error of a batch. Its header is valid except for faults of length or magic. */
static PyObject *raise_fault(BatchFault fault, const uint8_t *batch, Py_ssize_t size, const BatchHeader *header)
{
    long long wanted = size > MAGIC_AT ? (long long)(int32_t)headrace_read32(batch + 8) : 0;
    char message[80];
    switch (fault) {
    case FINE:
        break;
    case NO_BATCH:
        return PyErr_Format(headrace_corrupt_batch, "%zd bytes are no record batch", size);
    case OLD_MAGIC:
        return PyErr_Format(unsupported_magic, "message format with magic %d; only record batches (magic 2) are taken",
                            (int8_t)batch[MAGIC_AT]);
    case UNKNOWN_MAGIC:
        return PyErr_Format(headrace_corrupt_batch, "magic %d does not exist", (int8_t)batch[MAGIC_AT]);
    case SHORTER_THAN_HEADER:
        return PyErr_Format(headrace_corrupt_batch, "%zd bytes with batch length %lld: shorter than a batch header",
                            size, wanted);
    case BYTES_MISSING:
        return PyErr_Format(headrace_corrupt_batch, "batch length %lld wants %lld bytes, there are %zd", wanted,
                            wanted + BEFORE_LENGTH_ENDS, size);
    case BYTES_BEHIND:
        return PyErr_Format(invalid_batch, "%lld bytes after the batch; exactly one batch is taken",
                            (long long)size - wanted - BEFORE_LENGTH_ENDS);
    case CRC_DIFFERS:
        PyOS_snprintf(message, sizeof message, "CRC 0x%08x in the header, 0x%08x over the bytes", header->crc,
                      headrace_crc32c(0, batch + ATTRIBUTES_AT, (size_t)size - ATTRIBUTES_AT));
        PyErr_SetString(headrace_corrupt_batch, message);
        return NULL;
    case COUNTS_DIFFER:
        return PyErr_Format(invalid_batch, "%d records with last offset delta %d", header->count,
                            header->last_offset_delta);
    case CONTROL_BIT:
        PyErr_SetString(invalid_batch, "the control bit is set; control batches are the broker's");
        return NULL;
    case UNKNOWN_CODEC:
        return PyErr_Format(unknown_codec, "compression codec %d does not exist", header->attributes & BATCH_CODEC);
    case PRODUCER_FIELDS_DIFFER:
        return PyErr_Format(invalid_batch, "producer %lld with epoch %d and sequence %d",
                            (long long)header->producer_id, header->producer_epoch, header->base_sequence);
    case TRANSACTION_WITHOUT_PRODUCER:
        PyErr_SetString(invalid_batch, "a transactional batch without producer id");
        return NULL;
    }
    return headrace_header_tuple(header);
}

static PyObject *header_of(PyObject *batch, BatchFault (*read)(const uint8_t *, Py_ssize_t, BatchHeader *))
{
    Py_buffer view;
    BatchHeader header = {0};
    if (PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    BatchFault fault = read(view.buf, view.len, &header);
    PyObject *result = raise_fault(fault, view.buf, view.len, &header);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *native_check(PyObject *Py_UNUSED(module), PyObject *batch)
{
    return header_of(batch, headrace_check_batch);
}

static PyObject *native_peek(PyObject *Py_UNUSED(module), PyObject *batch)
{
    return header_of(batch, headrace_peek_batch);
}

/* Base offset and leader epoch of a batch in a writable buffer. */
static PyObject *native_stamp(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "stamp takes 3 arguments, not %zd", count);
        return NULL;
    }
    long long base_offset = PyLong_AsLongLong(args[1]);
    if (base_offset == -1 && PyErr_Occurred())
        return NULL;
    long long leader_epoch = PyLong_AsLongLong(args[2]);
    if (leader_epoch == -1 && PyErr_Occurred())
        return NULL;
    if (leader_epoch < INT32_MIN || leader_epoch > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a leader epoch has 32 bits");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (view.len < MAGIC_AT)
        PyErr_Format(PyExc_ValueError, "%zd bytes have no room for base offset and leader epoch", view.len);
    else {
        uint8_t *batch = view.buf;
        for (int byte = 0; byte < 8; byte++)
            batch[byte] = (uint8_t)((uint64_t)base_offset >> (56 - 8 * byte));
        for (int byte = 0; byte < 4; byte++)
            batch[12 + byte] = (uint8_t)((uint64_t)leader_epoch >> (24 - 8 * byte));
    }
    PyBuffer_Release(&view);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
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

/* Uninitialized memory for received bytes. Zeroing it would touch every byte twice. */
static PyObject *native_unfilled(PyObject *Py_UNUSED(module), PyObject *size)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(size);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (wanted < 0)
        return PyErr_Format(PyExc_ValueError, "%zd bytes of memory", wanted);
    return PyByteArray_FromStringAndSize(NULL, wanted);
}

static PyMethodDef methods[] = {
    {"check", native_check, METH_O, "The 13 header fields of a batch that a client may append."},
    {"peek", native_peek, METH_O, "The 13 header fields, without looking at the CRC."},
    {"stamp", (PyCFunction)(void (*)(void))native_stamp, METH_FASTCALL,
     "stamp(batch, base_offset, leader_epoch): write both into a batch, in place."},
    {"crc32c", native_crc32c, METH_VARARGS, "crc32c(data, crc=0): CRC-32C of the bytes."},
    {"crc32c_tables", native_crc32c_tables, METH_VARARGS, "The same without the processor's instruction."},
    {"encode", headrace_encode, METH_VARARGS, "encode(records, base_timestamp): the records section of a batch."},
    {"encode_columns", headrace_encode_columns, METH_VARARGS,
     "encode_columns(key, value, start, stop, max_bytes): a records section of Arrow columns, and the next row."},
    {"encode_rows", headrace_encode_rows, METH_VARARGS,
     "encode_rows(key, value, headers, offsets, timestamps, start, stop, max_bytes): the same, of rows with places."},
    {"find", headrace_find, METH_VARARGS,
     "find(payload, count, last_offset_delta, base_offset, base_timestamp, fixed, first_offset, not_before)."},
    {"keyless", headrace_keyless, METH_VARARGS,
     "keyless(payload, count, last_offset_delta, most): indexes of the first records without key, and their number."},
    {"merge", headrace_merge, METH_VARARGS,
     "merge(batches, sections, most): neighbors merged into batches with at most so many bytes of records."},
    {"publish", headrace_publish, METH_VARARGS,
     "publish(body, partitions, now_ms, seed, left_out, most_value, most_total): places and batches, or None."},
    {"receipts", headrace_receipts, METH_VARARGS, "receipts(places, told, head, tail): an entry for each place."},
    {"records", headrace_records, METH_VARARGS, "The records of a batch as a list of named tuples."},
    {"schemas", headrace_schemas, METH_VARARGS,
     "schemas(payload, count, last_offset_delta, of_value, header, most_schemas, most_malformed): references to them."},
    {"some", headrace_some, METH_VARARGS,
     "A few records of a batch, each with how many headers it has, and the offset to go on from."},
    {"unfilled", native_unfilled, METH_O, "unfilled(size): a bytearray with whatever was in that memory."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.records._compiled",
    .m_doc = "Header check, CRC-32C and record decoding in C.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    headrace_crc32c_prepare();
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
            || PyModule_AddType(module, &headrace_messages_type) < 0
            || PyModule_AddType(module, &headrace_offset_map_type) < 0))
        Py_CLEAR(module);
    return module;
}
