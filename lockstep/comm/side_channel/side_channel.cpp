#include "lockstep/comm/side_channel/side_channel.h"

#include <algorithm>
#include <utility>

namespace lockstep::side_channel {

std::string numbered(const CallRecord& record) {
  return "#" + std::to_string(record.sequence) + " " + launch::describe(record);
}

std::string mismatch_text(const std::vector<CallRecord>& records) {
  std::vector<std::pair<std::string, std::string>> groups;  // call, ranks
  for (size_t r = 0; r < records.size(); ++r) {
    const std::string call = numbered(records[r]);
    const auto it =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == call; });
    if (it == groups.end())
      groups.emplace_back(call, std::to_string(r));
    else
      it->second += ", " + std::to_string(r);
  }
  std::string text = "ranks called different collectives:";
  for (const auto& [call, ranks] : groups) {
    text +=
        (ranks.find(',') == std::string::npos ? " rank " : " ranks ") + ranks + ": " + call + ";";
  }
  return text + " every rank must call the same operations in the same order";
}

}  // namespace lockstep::side_channel
