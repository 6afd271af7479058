#include "lockstep/recover/holders.h"

#include <algorithm>

namespace lockstep::inline v0::recover {
namespace {

int distance(int size, int local) {
  return local < size ? std::max(1, local) : 1;
}

}  // namespace

int replica_holder(int rank, int size, int local) {
  return (rank + distance(size, local)) % size;
}
int replicated_rank(int rank, int size, int local) {
  return (rank + size - distance(size, local) % size) % size;
}

std::vector<int> replica_holders(int rank, int size, int local) {
  std::vector<int> holders;
  const auto add = [&](int holder) {
    const bool known = std::find(holders.begin(), holders.end(), holder) != holders.end();
    if (holder != rank && !known) holders.push_back(holder);
  };
  add(replica_holder(rank, size, local));
  add(replicated_rank(rank, size, local));
  if (holders.size() == 1) {
    add((rank + 1) % size);
    add((rank + size - 1) % size);
  }
  return holders;
}

}  // namespace lockstep::inline v0::recover
