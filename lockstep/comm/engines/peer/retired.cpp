#include "lockstep/comm/engines/peer/retired.h"

#include <iterator>
#include <list>
#include <utility>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::peer {
namespace {

struct RetiredList {
  Mutex mutex;
  std::list<Retired> all LOCKSTEP_GUARDED_BY(mutex);
};

RetiredList& retired() {
  static auto* const list = new RetiredList();  // reachable, so that leak checkers do not report it
  return *list;
}

}  // namespace

void retire(Retired one) {
  {
    RetiredList& list = retired();
    const MutexLock lock(list.mutex);
    list.all.push_back(std::move(one));
  }
  free_what_is_closed();
}

void free_what_is_closed() {
  RetiredList& list = retired();
  std::list<Retired> closed;  // freed without the lock, because CUDA waits for the device
  {
    const MutexLock lock(list.mutex);
    for (auto it = list.all.begin(); it != list.all.end();) {
      const auto next = std::next(it);
      if (it->is_closed()) closed.splice(closed.end(), list.all, it);
      it = next;
    }
  }
  for (const Retired& one : closed) one.free();
}

}  // namespace lockstep::inline v0::peer
