#include "lockstep/store/store.h"

#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void store_barrier(Store& store, const std::string& name, int size, Deadline deadline) {
  if (size < 1) throw InvalidArgument("store_barrier '" + name + "': size must be at least 1");
  const std::string arrived = name + "/arrived";
  const std::string open = name + "/open";
  const int64_t count = store.add(arrived, 1);
  if (count > size) {
    throw StoreError("store_barrier '" + name + "': participant " + std::to_string(count) + " of " +
                     std::to_string(size) + "; a name serves one meeting, use a new one each time");
  }
  if (count == size) {
    store.set(open, "1");
    return;
  }
  try {
    store.get(open, deadline);
  } catch (const Timeout&) {
    std::ostringstream what;
    what << "store_barrier '" << name << "': " << store.try_get(arrived).value_or("?") << " of "
         << size << " participants arrived within " << deadline.timeout_seconds() << " s";
    throw Timeout(what.str());
  }
}

void Store::offer(const std::string& key, const std::string&, Deadline) {
  throw StoreError("offer of '" + key + "': this store may take its time");
}

std::optional<std::string> Store::peek(const std::string& key, Deadline) {
  throw StoreError("peek of '" + key + "': this store may take its time");
}

}  // namespace lockstep::inline v0
