/* A record's headers as the text of their field in an entry of a Redis Stream (JSON), and back. The rules are those of
 * fallback/streams.py. */

#ifndef HEADRACE_RECORDS_HEADER_TEXT_H
#define HEADRACE_RECORDS_HEADER_TEXT_H

#include "_writing.h"

/* Add the text to `out`; 0, or -1 without memory. `headrace_base64_prepare` comes before. */
int headrace_write_header_text(Bytes *out, const Record *record);
/* Read a text into `section`, in place of what is there: how many headers there are, then names and values as in a
 * record. 1 when it was read, 0 when Python must look at it, -1 without memory. */
int headrace_read_header_text(const uint8_t *text, size_t size, Bytes *section);

#endif
