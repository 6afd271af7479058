#include "lockstep/trace/call_record.h"

#include <cstddef>
#include <cstring>

namespace lockstep::inline v0::trace {
namespace {

// Fields may come from another process: never read past their end.
template <size_t kSize>
std::string field(const char (&text)[kSize]) {
  return {text, ::strnlen(text, kSize)};
}

}  // namespace

std::string describe(const CallRecord& record) {
  std::string text = field(record.op);
  if (is_remote(record)) return text + " " + field(record.note);
  if (record.reduce[0] != '\0') text += " " + field(record.reduce);
  if (record.dtype[0] != '\0')
    text += " " + field(record.dtype) + " x " + std::to_string(record.elements);
  if (record.root >= 0) text += ", root " + std::to_string(record.root);
  if (record.moving == 1) text += " to rank " + std::to_string(record.peer);
  if (record.moving == 2) text += " from rank " + std::to_string(record.peer);
  if (record.tag != 0) text += ", tag " + std::to_string(record.tag);
  if (record.note[0] != '\0') text += ", " + field(record.note);
  if (record.file[0] != '\0')
    text += " at " + field(record.file) + ":" + std::to_string(record.line);
  return text;
}

}  // namespace lockstep::inline v0::trace
