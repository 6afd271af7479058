#include "lockstep/comm/groups/attempt.h"

#include <algorithm>

#include "lockstep/comm/groups/pauses.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {

std::string Attempt::agree(const std::vector<int>& members, Deadline deadline,
                           const std::function<std::string(const std::vector<int>&)>& hopeless,
                           const std::function<std::string(const std::string&)>& late) {
  store_->set(made(rank_), "1");
  Pauses pauses;
  std::vector<int> missing = members;
  while (true) {
    if (const auto known = outcome()) return *known;
    std::erase_if(missing, [this](int r) { return store_->try_get(made(r)).has_value(); });
    if (missing.empty()) return give_up(kMade);
    if (const std::string why = hopeless(missing); !why.empty()) return give_up(why);
    if (deadline.expired()) return give_up(late("rank " + joined(missing, ", ")));
    pauses.pause();
  }
}

}  // namespace lockstep::inline v0
