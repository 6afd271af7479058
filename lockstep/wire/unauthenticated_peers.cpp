#include "lockstep/wire/unauthenticated_peers.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {

std::string source_of(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return "";
  if (domain == AF_UNIX) {
    ucred peer{};
    size = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "";
    return "process " + std::to_string(peer.pid);
  }
  try {
    return peer_address(fd).host;
  } catch (const SystemError&) {
    return "";  // it has left
  }
}

size_t most_unauthenticated(size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return std::clamp<size_t>(limit.rlim_cur / 2, 1, wanted);
}

bool worth_a_line(uint64_t count) {
  uint64_t said = 1;
  while (said < count && said <= UINT64_MAX / 10) said *= 10;
  return said == count;
}

void UnauthenticatedPeers::add(uint64_t id, const std::string& source) {
  if (sources_.emplace(id, source).second) of_source_[source].insert(id);
}

void UnauthenticatedPeers::remove(uint64_t id) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  const auto of = of_source_.find(found->second);
  of->second.erase(id);
  if (of->second.empty()) of_source_.erase(of);
  sources_.erase(found);
}

std::optional<uint64_t> UnauthenticatedPeers::first_to_go() const {
  const std::set<uint64_t>* most = nullptr;
  for (const auto& [source, ids] : of_source_) {
    const bool more = !most || ids.size() > most->size() ||
                      (ids.size() == most->size() && *ids.begin() < *most->begin());
    if (more) most = &ids;
  }
  if (!most) return std::nullopt;
  return *most->begin();
}

std::optional<uint64_t> UnauthenticatedPeers::oldest() const {
  if (sources_.empty()) return std::nullopt;
  return sources_.begin()->first;
}

}  // namespace lockstep::inline v0::wire
