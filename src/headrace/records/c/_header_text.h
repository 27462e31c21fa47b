/* A record's headers as JSON in an entry of a Redis Stream, and back, as in fallback/streams.py. */

#ifndef HEADRACE_RECORDS_HEADER_TEXT_H
#define HEADRACE_RECORDS_HEADER_TEXT_H

#include "_writing.h"

/* Append the text to `out`. Return 0, or -1 without memory. Call `headrace_base64_prepare` first. */
int headrace_write_header_text(Bytes *out, const Record *record);
/* Read a text into `section`: the count, then names and values as in a record. Return 1, 0 if Python must read it,
 * or -1 without memory. */
int headrace_read_header_text(const uint8_t *text, size_t size, Bytes *section);

#endif
