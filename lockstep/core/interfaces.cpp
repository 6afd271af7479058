#include "lockstep/core/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

bool is_v6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

// Bridges and virtual links to containers and virtual machines on this host.
bool stays_inside(const std::string& interface) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "docker", "br-", "veth", "virbr", "vnet", "lxc", "cni", "flannel", "podman"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return interface.starts_with(name); });
}

std::string list_of(const std::vector<InterfaceAddress>& all) {
  std::string text;
  for (const InterfaceAddress& one : all) {
    text += (text.empty() ? "" : ", ") + one.interface + " (" + one.address + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw system_error("getifaddrs", errno);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    found.push_back({entry->ifa_name, text, (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  ::freeifaddrs(list);
  std::stable_sort(found.begin(), found.end(),
                   [](const InterfaceAddress& a, const InterfaceAddress& b) {
                     return !is_v6(a.address) && is_v6(b.address);
                   });
  return found;
}

std::vector<std::string> candidate_addresses(const std::vector<InterfaceAddress>& all,
                                             const std::string& wanted) {
  std::vector<std::string> candidates, last;
  for (const InterfaceAddress& one : all) {
    if (!wanted.empty()) {
      if (one.interface == wanted || one.address == wanted) candidates.push_back(one.address);
    } else if (!one.loopback) {
      (stays_inside(one.interface) ? last : candidates).push_back(one.address);
    }
  }
  if (!wanted.empty() && candidates.empty()) {
    throw InvalidArgument("this host has no network interface or address '" + wanted +
                          "'; it has " + list_of(all));
  }
  candidates.insert(candidates.end(), last.begin(), last.end());
  return candidates;
}

std::optional<std::string> interface_of(const std::vector<InterfaceAddress>& all,
                                        const std::string& address) {
  for (const InterfaceAddress& one : all) {
    if (one.address == address) return one.interface;
  }
  return std::nullopt;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

}  // namespace lockstep::inline v0
