/* Messages of a REST response, without a Python object per record, as in records/fallback/messages.py. */

#include "_base64.h"
#include "_compiled.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    Buffer out;
    Py_ssize_t most_count;
    Py_ssize_t most_bytes;
    Py_ssize_t most_message; /* maximum bytes of one message's key and value; larger ones are skipped */
    Py_ssize_t passed_over;
    Py_ssize_t count;
    Py_ssize_t size; /* bytes of keys and values */
    char full;
    int64_t time; /* time of `time_text`, cached, as adjacent records often share it */
    char time_text[24];
} Messages;

enum { MOST_BYTES = 1 << 30, MOST_MESSAGE = 16 << 20, TIME_SIZE = 24, DIGITS = 20 };
/* Size from which other threads run during reads and writes. */
enum { LARGE_PAYLOAD = 256 << 10 };
static const int64_t LATEST_MS = 253402300799999; /* the end of the year 9999 */
static const int64_t DAY_MS = 86400000;

static char *write_number(char *to, int64_t number)
{
    char digits[DIGITS];
    int used = 0;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do
        digits[used++] = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *to++ = '-';
    while (used)
        *to++ = digits[--used];
    return to;
}

static void write_digits(char *to, int width, int64_t number)
{
    for (; width; number /= 10)
        to[--width] = (char)('0' + number % 10);
}

/* RFC 3339 with milliseconds. If years begin in March, leap days are last, and month lengths are linear. */
static void tell_time(Messages *self, int64_t time)
{
    if (time < 0)
        time = 0;
    if (time > LATEST_MS)
        time = LATEST_MS;
    if (time == self->time)
        return;
    self->time = time;
    int64_t days = time / DAY_MS + 719468; /* since the first of March of the year 0 */
    int64_t ms = time % DAY_MS;
    int64_t era = days / 146097;
    int64_t day_of_era = days % 146097;
    int64_t year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    char *text = self->time_text;
    memcpy(text, "0000-00-00T00:00:00.000Z", TIME_SIZE);
    write_digits(text, 4, year + 400 * era + (month > 9));
    write_digits(text + 5, 2, month < 10 ? month + 3 : month - 9);
    write_digits(text + 8, 2, day_of_year - (153 * month + 2) / 5 + 1);
    write_digits(text + 11, 2, ms / 3600000);
    write_digits(text + 14, 2, ms / 60000 % 60);
    write_digits(text + 17, 2, ms / 1000 % 60);
    write_digits(text + 20, 3, ms % 1000);
}

static inline char *write_text(char *to, const char *text, size_t size)
{
    memcpy(to, text, size);
    return to + size;
}

#define WRITE(to, literal) write_text((to), (literal), sizeof(literal) - 1)

static int put_message(Messages *self, const Record *record, int64_t offset, int64_t time, const Py_buffer *prefix)
{
    size_t key_size = record->key_size > 0 ? (size_t)record->key_size : 0;
    size_t value_size = record->value_size > 0 ? (size_t)record->value_size : 0;
    enum { AROUND = 80 + DIGITS + TIME_SIZE }; /* maximum bytes other than prefix and base64 */
    if (reserve(&self->out, (size_t)prefix->len + base64_size(key_size) + base64_size(value_size) + AROUND) < 0)
        return -1;
    char *start = PyBytes_AS_STRING(self->out.bytes);
    char *to = start + self->out.used;
    *to++ = self->count ? ',' : '[';
    to = write_text(to, prefix->buf, (size_t)prefix->len);
    if (record->key_size < 0)
        to = WRITE(to, "null");
    else {
        *to++ = '"';
        to = write_base64(to, record->key, key_size);
        *to++ = '"';
    }
    to = WRITE(to, ",\"value\":\"");
    PyThreadState *others = value_size > LARGE_PAYLOAD ? PyEval_SaveThread() : NULL;
    to = write_base64(to, record->value, value_size);
    if (others)
        PyEval_RestoreThread(others);
    to = WRITE(to, "\",\"offset\":");
    to = write_number(to, offset);
    to = WRITE(to, ",\"timestamp\":\"");
    tell_time(self, time);
    to = write_text(to, self->time_text, TIME_SIZE);
    to = WRITE(to, "\"}");
    self->out.used = (size_t)(to - start);
    self->count++;
    self->size += (Py_ssize_t)(key_size + value_size);
    self->full = self->count >= self->most_count || self->size >= self->most_bytes;
    return 0;
}

static inline Py_ssize_t size_of(const Record *record)
{
    return (Py_ssize_t)(record->key_size > 0 ? record->key_size : 0) + (record->value_size > 0 ? record->value_size : 0);
}

static inline int has_room(const Messages *self, const Record *record)
{
    return self->count < self->most_count && (!self->count || self->size + size_of(record) <= self->most_bytes);
}

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t first_offset;
    int64_t fixed_timestamp;
    int64_t not_before;
    int is_fixed;
    int is_bounded;
} Wanted;

static inline int64_t offset_of(const Wanted *wanted, const Record *record)
{
    return headrace_add_wrapping(wanted->base_offset, record->offset_delta);
}

static inline int64_t time_of(const Wanted *wanted, const Record *record)
{
    return wanted->is_fixed ? wanted->fixed_timestamp
                            : headrace_add_wrapping(wanted->base_timestamp, record->timestamp_delta);
}

static inline int is_wanted(const Wanted *wanted, const Record *record)
{
    return offset_of(wanted, record) >= wanted->first_offset
           && !(wanted->is_bounded && time_of(wanted, record) < wanted->not_before);
}

/* Find the next matching record. Return 1, 0 without one, or -1 with CorruptBatch set. */
static int find_wanted(Walk *walk, const Wanted *wanted, Record *record)
{
    while (walk->remaining > 0) {
        if (headrace_next_record(walk, record) < 0)
            return -1;
        if (is_wanted(wanted, record))
            return 1;
    }
    return 0;
}

/* The same; other threads run if many records may be skipped. For adjacent matches this would cost more than it
 * saves. */
static int find_next(Walk *walk, const Wanted *wanted, Record *record, int *is_run)
{
    while (*is_run || walk->end - walk->at <= LARGE_PAYLOAD) {
        if (walk->remaining <= 0)
            return 0;
        if (headrace_next_record(walk, record) < 0)
            return -1;
        *is_run = is_wanted(wanted, record);
        if (*is_run)
            return 1;
    }
    PyThreadState *others = PyEval_SaveThread();
    int found = find_wanted(walk, wanted, record);
    PyEval_RestoreThread(others);
    *is_run = 1;
    return found;
}

/* Write messages while there is room. Return 0 and the next offset, or -1 with CorruptBatch set. */
static int put_batch(Messages *self, Walk *walk, const Wanted *wanted, const Py_buffer *prefix, int64_t *following)
{
    Record record;
    int is_run = 0, found;
    while ((found = find_next(walk, wanted, &record, &is_run)) > 0) {
        if (size_of(&record) > self->most_message) {
            self->passed_over++;
            continue;
        }
        if (!has_room(self, &record)) {
            self->full = 1;
            *following = offset_of(wanted, &record);
            return 0;
        }
        if (put_message(self, &record, offset_of(wanted, &record), time_of(wanted, &record), prefix) < 0)
            return -1;
    }
    *following = headrace_add_wrapping(wanted->base_offset, (int64_t)walk->last_offset_delta + 1);
    return found < 0 ? -1 : headrace_walk_ended(walk);
}

static int number_or_none(PyObject *object, int64_t *number, int *is_there)
{
    *is_there = object != Py_None;
    *number = *is_there ? PyLong_AsLongLong(object) : 0;
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Reserve memory for the whole batch at once. */
static int reserve_batch(Messages *self, const Py_buffer *payload, int count)
{
    Py_ssize_t bytes = self->most_bytes - self->size;
    Py_ssize_t messages = self->most_count - self->count;
    bytes = payload->len < bytes ? payload->len : bytes;
    messages = count < messages ? count : messages;
    if (messages <= 0 || bytes <= 0)
        return 0;
    return reserve(&self->out, base64_size((size_t)bytes) + (size_t)messages * 128);
}

static PyObject *messages_write(Messages *self, PyObject *args)
{
    Py_buffer payload, prefix;
    int count, last_offset_delta;
    long long base_offset, base_timestamp, first_offset;
    PyObject *fixed, *not_before;
    if (!PyArg_ParseTuple(args, "y*iiLLOLOy*:write", &payload, &count, &last_offset_delta, &base_offset,
                          &base_timestamp, &fixed, &first_offset, &not_before, &prefix))
        return NULL;
    const size_t used = self->out.used;
    const Py_ssize_t count_before = self->count, size_before = self->size, passed_before = self->passed_over;
    const char full_before = self->full;
    Wanted wanted = {.base_offset = base_offset, .base_timestamp = base_timestamp, .first_offset = first_offset};
    int64_t following = 0;
    Walk walk;
    int failed = number_or_none(fixed, &wanted.fixed_timestamp, &wanted.is_fixed) < 0
                 || number_or_none(not_before, &wanted.not_before, &wanted.is_bounded) < 0
                 || headrace_start_walk(&walk, &payload, count, last_offset_delta) < 0
                 || reserve_batch(self, &payload, count) < 0
                 || put_batch(self, &walk, &wanted, &prefix, &following) < 0;
    if (failed) {
        self->out.used = used;
        self->count = count_before;
        self->size = size_before;
        self->passed_over = passed_before;
        self->full = full_before;
    }
    PyBuffer_Release(&payload);
    PyBuffer_Release(&prefix);
    return failed ? NULL : PyLong_FromLongLong(following);
}

static PyObject *messages_take(Messages *self, PyObject *Py_UNUSED(ignored))
{
    if (reserve(&self->out, 2) < 0)
        return NULL;
    if (!self->count)
        put(&self->out, "[", 1);
    put(&self->out, "]", 1);
    self->count = self->size = 0;
    self->full = self->most_count <= 0;
    return take(&self->out);
}

static int messages_init(Messages *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"most_count", "most_bytes", "most_message", NULL};
    Py_ssize_t most_count, most_bytes, most_message = MOST_MESSAGE;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "nn|n:Messages", names, &most_count, &most_bytes, &most_message))
        return -1;
    drop(&self->out);
    self->most_count = most_count;
    self->most_bytes = most_bytes < MOST_BYTES ? most_bytes : MOST_BYTES;
    self->most_message = most_message < MOST_BYTES ? most_message : MOST_BYTES;
    self->count = self->size = self->passed_over = 0;
    self->full = most_count <= 0;
    self->time = -1;
    return 0;
}

static void messages_dealloc(Messages *self)
{
    drop(&self->out);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef messages_methods[] = {
    {"write", (PyCFunction)messages_write, METH_VARARGS,
     "write(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp, first_offset, not_before, "
     "prefix): the offset to go on from."},
    {"take", (PyCFunction)messages_take, METH_NOARGS, "The JSON array; it is empty then."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef messages_members[] = {
    {"count", T_PYSSIZET, offsetof(Messages, count), READONLY, "Messages so far."},
    {"size", T_PYSSIZET, offsetof(Messages, size), READONLY, "Bytes of their keys and values."},
    {"passed_over", T_PYSSIZET, offsetof(Messages, passed_over), READONLY, "Messages too large to be told."},
    {"full", T_BOOL, offsetof(Messages, full), READONLY, "Whether it takes no more."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject headrace_messages_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headrace.records._compiled.Messages",
    .tp_basicsize = sizeof(Messages),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Messages of a REST answer, written from batches.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)messages_init,
    .tp_dealloc = (destructor)messages_dealloc,
    .tp_methods = messages_methods,
    .tp_members = messages_members,
};
