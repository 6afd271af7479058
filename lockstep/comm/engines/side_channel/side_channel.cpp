#include "lockstep/comm/engines/side_channel/side_channel.h"

#include "lockstep/comm/backend/mismatch_text.h"

namespace lockstep::inline v0::side_channel {

std::string mismatch_text(const std::vector<CallRecord>& records) {
  std::vector<RankCall> calls;
  for (const CallRecord& record : records)
    calls.push_back({static_cast<int>(calls.size()), record.sequence, trace::describe(record)});
  return lockstep::mismatch_text(calls);
}

}  // namespace lockstep::inline v0::side_channel
