#include "lockstep/comm/mismatch_text.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep {

std::string mismatch_text(std::span<const RankCall> calls, const std::string& noticed_at) {
  std::vector<std::pair<std::string, std::string>> groups;  // call, ranks
  for (const RankCall& one : calls) {
    const std::string call = "#" + std::to_string(one.sequence) + " " + one.text;
    const auto it =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == call; });
    if (it == groups.end())
      groups.emplace_back(call, std::to_string(one.rank));
    else
      it->second += ", " + std::to_string(one.rank);
  }
  std::string text = "ranks called different collectives";
  if (!noticed_at.empty()) text += ", noticed at " + noticed_at;
  text += ":";
  for (const auto& [call, ranks] : groups) {
    const bool several = ranks.find(',') != std::string::npos;
    text += (several ? " ranks " : " rank ") + ranks + ": " + call + ";";
  }
  return text + " every rank must call the same operations in the same order";
}

}  // namespace lockstep
