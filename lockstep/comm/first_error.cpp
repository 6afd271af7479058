#include "lockstep/comm/first_error.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/comm/objects.h"

namespace lockstep::inline v0 {

std::string first_error(Communicator& comm, const std::string& own, Communicator::Site site) {
  const std::vector<nlohmann::json> all = all_gather_object(comm, own, site);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto text = all[rank].get<std::string>();
    if (!text.empty()) return "rank " + std::to_string(rank) + ": " + text;
  }
  return "";
}

}  // namespace lockstep::inline v0
