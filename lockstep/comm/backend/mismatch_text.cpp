#include "lockstep/comm/backend/mismatch_text.h"

#include <algorithm>
#include <vector>

namespace lockstep::inline v0 {
namespace {

std::string numbered(uint64_t sequence, const std::string& call) {
  return "#" + std::to_string(sequence) + " " + call;
}

constexpr const char* kSameOrder = "every rank must call the same operations in the same order";

bool is_same(const RankCall& a, const RankCall& b) {
  if (a.fingerprint && b.fingerprint) return *a.fingerprint == *b.fingerprint;
  return a.sequence == b.sequence && a.text == b.text;
}

}  // namespace

std::string numbered(const trace::CallRecord& record) {
  return numbered(record.sequence, trace::describe(record));
}

std::string mismatch_text(std::span<const RankCall> calls, const std::string& noticed_at) {
  struct Group {
    const RankCall* call;
    std::string ranks;
    bool several;
  };
  std::vector<Group> groups;
  for (const RankCall& one : calls) {
    const auto it = std::find_if(groups.begin(), groups.end(),
                                 [&](const Group& g) { return is_same(*g.call, one); });
    if (it == groups.end()) {
      groups.push_back({&one, std::to_string(one.rank), false});
    } else {
      it->ranks += ", " + std::to_string(one.rank);
      it->several = true;
    }
  }
  std::string text = "ranks called different collectives";
  if (!noticed_at.empty()) text += ", noticed at " + noticed_at;
  text += ":";
  for (const Group& group : groups) {
    text += (group.several ? " ranks " : " rank ") + group.ranks + ": " +
            numbered(group.call->sequence, group.call->text) + ";";
  }
  return text + " " + kSameOrder;
}

std::string mismatch_text_before(uint64_t calls, const std::string& noticed_at) {
  return "ranks called different collectives more than " + std::to_string(calls) +
         (calls == 1 ? " call" : " calls") + " before " + noticed_at + "; " + kSameOrder;
}

}  // namespace lockstep::inline v0
