#include "lockstep/comm/side_channel/call_record.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace lockstep::side_channel {

CallRecord make_record(const Call& call) {
  CallRecord record;
  record.fingerprint = fingerprint(call);
  record.sequence = call.sequence;
  record.count = call.counts.empty()
                     ? call.count
                     : std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
  record.root = call.root;
  record.op = call.op;
  record.reduce = call.reduce;
  record.dtype = static_cast<int8_t>(call.dtype);
  if (const char* file = call.site.file_name(); file != nullptr && *file != '\0') {
    const char* slash = std::strrchr(file, '/');
    const char* name = slash != nullptr ? slash + 1 : file;
    std::memcpy(record.file, name, std::min(std::strlen(name), sizeof record.file - 1));
    record.line = call.site.line();
  }
  return record;
}

std::string describe(const CallRecord& record) {
  Call call;
  call.op = record.op;
  call.reduce = record.reduce;
  call.dtype = static_cast<at::ScalarType>(record.dtype);
  call.root = record.root;
  call.count = record.count;
  call.counts = {record.count};
  call.site = {};
  std::string text = "#" + std::to_string(record.sequence) + " " + lockstep::describe(call);
  if (record.file[0] != '\0') {
    text +=
        std::string(" at ") + std::string(record.file, ::strnlen(record.file, sizeof record.file));
    text += ":" + std::to_string(record.line);
  }
  return text;
}

}  // namespace lockstep::side_channel
