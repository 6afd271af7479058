// The network interfaces of this host and their addresses.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline v0 {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric
  bool loopback = false;

  bool operator==(const InterfaceAddress&) const = default;
};

// The addresses of the interfaces that are up, IPv4 before IPv6, without IPv6's link-local ones
// (they mean nothing without their interface).
// Throws: SystemError.
std::vector<InterfaceAddress> interface_addresses();

// The addresses of `all` by which other hosts may reach this one, the likeliest first. Those of
// bridges to containers and virtual machines, which are often the same on every host, come last;
// loopback ones are left out. A non-empty `wanted` is the interface, or its address, to which the
// choice is restricted, loopback included. Pure.
// Throws: InvalidArgument that lists the existing ones when `wanted` is not among them.
std::vector<std::string> candidate_addresses(const std::vector<InterfaceAddress>& all,
                                             const std::string& wanted = "");

// The interface that has the address; nullopt: none of `all`. Pure.
std::optional<std::string> interface_of(const std::vector<InterfaceAddress>& all,
                                        const std::string& address);

// Whether a numeric address is a loopback one: 127.0.0.0/8 or ::1. Pure.
bool is_loopback(const std::string& address);

}  // namespace lockstep::inline v0
