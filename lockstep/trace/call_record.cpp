#include "lockstep/trace/call_record.h"

#include "lockstep/trace/field_text.h"

namespace lockstep::inline v0::trace {

std::string title(const CallRecord& record) {
  const std::string note = field_text(record.note);
  return field_text(record.op) + (note.empty() ? "" : ": " + note);
}

std::string describe(const CallRecord& record) {
  std::string text = field_text(record.op);
  if (is_remote(record)) return text + " " + field_text(record.note);
  if (record.reduce[0] != '\0') text += " " + field_text(record.reduce);
  if (record.dtype[0] != '\0')
    text += " " + field_text(record.dtype) + " x " + std::to_string(record.elements);
  if (record.root >= 0) text += ", root " + std::to_string(record.root);
  if (record.moving == 1) text += " to rank " + std::to_string(record.peer);
  if (record.moving == 2) text += " from rank " + std::to_string(record.peer);
  if (record.tag != 0) text += ", tag " + std::to_string(record.tag);
  if (record.note[0] != '\0') text += ", " + field_text(record.note);
  if (record.file[0] != '\0')
    text += " at " + field_text(record.file) + ":" + std::to_string(record.line);
  return text;
}

}  // namespace lockstep::inline v0::trace
