#include "lockstep/cli/doctor/peer.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/interfaces.h"
#include "lockstep/core/log.h"
#include "lockstep/report/table.h"
#include "lockstep/trace/trace_file.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/frames.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPurpose = "lockstep doctor";
constexpr std::string_view kPurposeBack = "lockstep doctor, back";
constexpr auto kAuthentication = std::chrono::seconds(3);  // for a visitor to prove itself
constexpr double kBackTimeout = 3;                         // seconds for a connection back
constexpr size_t kMaxMessage = size_t{1} << 20;
constexpr int kPings = 20;
constexpr size_t kLarge = size_t{4} << 20;
// A larger difference of the clocks makes logs of two hosts hard to compare.
constexpr double kClockTolerance = 0.5;

void send_message(int fd, const Json& json, Deadline deadline) {
  wire::send_frame(fd, json.dump(-1, ' ', false, Json::error_handler_t::replace), kMaxMessage,
                   deadline);
}

Json receive_message(int fd, Deadline deadline) {
  Json json = Json::parse(wire::receive_frame(fd, kMaxMessage, deadline), nullptr, false);
  if (!json.is_object()) throw StoreError("the other end speaks something else");
  return json;
}

bool is_v6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

std::vector<std::string> own_addresses(const std::string& interface, bool v6) {
  std::vector<std::string> addresses = candidate_addresses(interface_addresses(), interface);
  std::erase_if(addresses, [v6](const std::string& address) { return is_v6(address) != v6; });
  return addresses;
}

// The address to listen at, so that all addresses of `interface`, or of this host, are reached.
HostPort listening_address(uint16_t port, const std::string& interface, bool v6) {
  const auto addresses = own_addresses(interface, v6);
  if (!interface.empty() && !addresses.empty()) return {addresses.front(), port};
  return {v6 ? "::" : "0.0.0.0", port};
}

wire::Listener listen_for(std::string_view purpose, const HostPort& address, const Secret& secret) {
  return {listen_tcp(address),
          secret,
          {.where = "lockstep doctor",
           .purpose = std::string(purpose),
           .time = kAuthentication,
           .says = [](const std::string& line) { log_warning(line); }}};
}

// Accepts the next visitor that proves the secret, and refuses others.
UniqueFd next_visitor(wire::Listener& listener, Deadline deadline) {
  while (true) {
    if (auto visitor = listener.next()) return std::move(visitor->fd);
    if (listener.starved() != 0)
      throw system_error("a visitor cannot be accepted", listener.starved());
    wait_ready(listener.fd(), POLLIN, deadline, "a visitor");
  }
}

// Tries every address; returns "", or the reason why none is reached.
std::vector<std::pair<std::string, std::string>> try_back(const std::vector<std::string>& addresses,
                                                          uint16_t port, const Secret& secret) {
  std::vector<std::pair<std::string, std::string>> outcomes;
  for (const std::string& address : addresses) {
    try {
      const Deadline deadline = Deadline::seconds(kBackTimeout);
      const UniqueFd fd = connect_tcp({address, port}, deadline);
      wire::authenticate_as_client(fd.get(), secret, kPurposeBack, deadline);
      outcomes.emplace_back(address, "");
    } catch (const Error& error) {
      outcomes.emplace_back(address, error.what());
    }
  }
  return outcomes;
}

void judge_ways(const Json& outcomes, const std::string& from, const std::string& to,
                std::vector<Finding>& findings) {
  std::string reached;
  for (const Json& one : outcomes) {
    if (one.at("error").get<std::string>().empty())
      reached += (reached.empty() ? "" : ", ") + one.at("address").get<std::string>();
  }
  if (!reached.empty())
    findings.push_back({Level::kOk, "way back", from + " reaches " + to + " at " + reached, ""});
  for (const Json& one : outcomes) {
    const auto error = one.at("error").get<std::string>();
    if (error.empty()) continue;
    findings.push_back(
        {reached.empty() ? Level::kProblem : Level::kOk, "way back",
         from + " does not reach " + to + " at " + one.at("address").get<std::string>() + ": " +
             error,
         reached.empty()
             ? "a firewall, or addresses that are not routed: open the ports, or choose "
               "a network that both have with --interface"
             : "nothing, if that network is not meant for jobs"});
  }
  if (outcomes.empty())
    findings.push_back({Level::kProblem, "way back", to + " has no address for other hosts",
                        "configure a network interface"});
}

std::string micro_text(double seconds) {
  return seconds < 1e-3 ? fixed(seconds * 1e6, 0) + " us" : fixed(seconds * 1e3, 1) + " ms";
}

void judge_version(const std::string& other, std::vector<Finding>& findings) {
  const bool same = other == LOCKSTEP_VERSION;
  findings.push_back({same ? Level::kOk : Level::kWarning, "versions",
                      "here " LOCKSTEP_VERSION ", there " + other,
                      same ? "" : "use the same version on all hosts"});
}

ClockOffset measure_clock(int fd, Deadline deadline) {
  std::vector<ClockReading> readings;
  for (int i = 0; i < kPings; ++i) {
    ClockReading reading;
    reading.sent = trace::read_clock().unix_ns;
    send_message(fd, {{"kind", "ping"}}, deadline);
    reading.there = receive_message(fd, deadline).at("unix_ns").get<int64_t>();
    reading.back = trace::read_clock().unix_ns;
    readings.push_back(reading);
  }
  return clock_offset(readings);
}

void judge_clock_offset(const ClockOffset& clock, std::vector<Finding>& findings) {
  findings.push_back({Level::kOk, "round trip",
                      micro_text(clock.round_trip) + ", median of " + std::to_string(kPings), ""});
  const bool close = std::abs(clock.seconds) <= kClockTolerance + clock.uncertainty;
  findings.push_back(
      {close ? Level::kOk : Level::kWarning, "clocks",
       "the other is " + micro_text(std::abs(clock.seconds)) +
           (clock.seconds < 0 ? " behind" : " ahead") + " (+- " + micro_text(clock.uncertainty) +
           ")",
       close ? "" : "set both by chronyd or ntpd, or logs of the hosts do not match"});
}

// Large messages get lost where packets of full size do, while small ones pass.
void check_large(int fd, std::vector<Finding>& findings, Deadline deadline) {
  const std::string large(kLarge, 'x');
  const Deadline own = Deadline::seconds(
      std::min(20.0, std::chrono::duration<double>(deadline.remaining()).count()));
  try {
    send_message(fd, {{"kind", "large"}, {"bytes", large.size()}}, own);
    write_exact(fd, large.data(), large.size(), own);
    receive_message(fd, own);
    const double seconds = own.elapsed_seconds();
    findings.push_back({Level::kOk, "large messages",
                        "4 MiB in " + micro_text(seconds) + ", " +
                            fixed(static_cast<double>(kLarge) / seconds * 1e-6, 0) + " MB/s",
                        ""});
  } catch (const Timeout&) {
    findings.push_back({Level::kProblem, "large messages",
                        "4 MiB did not arrive within " + fixed(own.timeout_seconds(), 0) +
                            " s, though small messages do",
                        "packets of full size are lost on the way: set the same MTU on both hosts "
                        "and all switches, or lower it (ip link set DEV mtu 1400)"});
    throw;
  }
}

void judge_path_mtu(int fd, std::vector<Finding>& findings) {
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (::getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size) == 0 && mtu > 0)
    findings.push_back({Level::kOk, "path MTU", std::to_string(mtu), ""});
}

// The last part of a visit: the listener tries the ways back, and reports the results.
Json await_outcomes(int control, wire::Listener& back, Deadline deadline) {
  while (true) {
    pollfd waiting[] = {{control, POLLIN, 0}, {back.fd(), POLLIN, 0}};
    if (deadline.expired()) throw Timeout("the other host does not say which ways back work");
    if (::poll(waiting, 2, deadline.poll_ms(1000)) <= 0) continue;
    if (waiting[1].revents != 0) back.next();
    if (waiting[0].revents != 0) return receive_message(control, deadline);
  }
}

}  // namespace

ClockOffset clock_offset(std::vector<ClockReading> readings) {
  // The shortest round trip leaves the least uncertainty.
  std::sort(readings.begin(), readings.end(), [](const ClockReading& a, const ClockReading& b) {
    return a.back - a.sent < b.back - b.sent;
  });
  const ClockReading& best = readings.front();
  const ClockReading& median = readings[readings.size() / 2];
  ClockOffset offset;
  offset.uncertainty = static_cast<double>(best.back - best.sent) * 0.5e-9;
  offset.seconds = static_cast<double>(best.there - best.sent) * 1e-9 - offset.uncertainty;
  offset.round_trip = static_cast<double>(median.back - median.sent) * 1e-9;
  return offset;
}

std::vector<Finding> listen_for_peer(uint16_t port, const std::string& interface,
                                     const Secret& secret, Deadline deadline) {
  // It listens by IPv6 at an interface that has IPv6 only.
  const bool v6 =
      own_addresses(interface, false).empty() && !own_addresses(interface, true).empty();
  wire::Listener listener = listen_for(kPurpose, listening_address(port, interface, v6), secret);
  const uint16_t bound = local_address(listener.door()).port;
  std::string line = "[lockstep] listening; on the other host:";
  const auto addresses = own_addresses(interface, v6);
  for (size_t i = 0; i < addresses.size(); ++i)
    line +=
        (i == 0 ? " lockstep doctor --peer " : ", or ") + HostPort{addresses[i], bound}.to_string();
  if (addresses.empty()) line += " none can come, this one has only the loopback interface";
  write_all(STDERR_FILENO, line + "\n");

  std::vector<Finding> findings;
  UniqueFd fd;
  try {
    fd = next_visitor(listener, deadline);
  } catch (const Timeout&) {
    return {
        {Level::kProblem, "visitor",
         "no other doctor came within " + fixed(deadline.timeout_seconds(), 0) + " s",
         "run lockstep doctor --peer on the other host, with the same LOCKSTEP_SECRET; if it ran, "
         "a firewall may stand between"}};
  }
  try {
    const std::string from = peer_address(fd.get()).host;
    const Json hello = receive_message(fd.get(), deadline);
    const auto other = hello.at("host").get<std::string>();
    findings.push_back(
        {Level::kOk, "way here",
         other + " (" + from + ") reaches this host at " + local_address(fd.get()).to_string(),
         ""});
    judge_version(hello.at("version").get<std::string>(), findings);
    send_message(fd.get(), {{"host", trace::host_name()}, {"version", LOCKSTEP_VERSION}}, deadline);
    while (true) {
      const Json message = receive_message(fd.get(), deadline);
      const auto kind = message.at("kind").get<std::string>();
      if (kind == "ping") {
        send_message(fd.get(), {{"unix_ns", trace::read_clock().unix_ns}}, deadline);
      } else if (kind == "large") {
        std::string bytes(std::min<size_t>(message.at("bytes").get<size_t>(), kLarge), '\0');
        read_exact(fd.get(), bytes.data(), bytes.size(), deadline);
        send_message(fd.get(), {{"kind", "arrived"}}, deadline);
      } else {
        break;
      }
    }
    Json outcomes = Json::array();
    for (const auto& [address, error] :
         try_back(hello.at("addresses").get<std::vector<std::string>>(),
                  hello.at("port").get<uint16_t>(), secret))
      outcomes.push_back({{"address", address}, {"error", error}});
    send_message(fd.get(), {{"outcomes", outcomes}}, deadline);
    judge_ways(outcomes, "this host", other, findings);
  } catch (const Error& error) {
    findings.push_back({Level::kProblem, "visitor", std::string("it broke off: ") + error.what(),
                        "see what it says there"});
  } catch (const Json::exception&) {
    findings.push_back({Level::kProblem, "visitor", "it speaks something else",
                        "use the same version of Lockstep on both hosts"});
  }
  return findings;
}

std::vector<Finding> visit_peer(const HostPort& peer, const std::string& interface,
                                const Secret& secret, Deadline deadline) {
  const HostPort address{resolve(peer.host), peer.port};
  const auto addresses = is_loopback(address.host) && interface.empty()
                             ? std::vector<std::string>{address.host}
                             : own_addresses(interface, is_v6(address.host));
  std::vector<Finding> findings;
  if (address.host != peer.host)
    findings.push_back({Level::kOk, "name", peer.host + " is " + address.host, ""});
  UniqueFd fd;
  try {
    fd = connect_tcp(address, deadline);
  } catch (const Error& error) {
    findings.push_back({Level::kProblem, "way there", error.what(),
                        "is lockstep doctor --listen running there, and is the port open in its "
                        "firewall?"});
    return findings;
  }
  try {
    wire::authenticate_as_client(fd.get(), secret, kPurpose, Deadline::after(kAuthentication));
  } catch (const Error& error) {
    findings.push_back({Level::kProblem, "way there",
                        address.to_string() + " is reached, but: " + error.what(),
                        "set LOCKSTEP_SECRET to the same text on both hosts; or something else "
                        "listens there"});
    return findings;
  }
  try {
    wire::Listener back =
        listen_for(kPurposeBack, listening_address(0, interface, is_v6(address.host)), secret);
    send_message(fd.get(),
                 {{"host", trace::host_name()},
                  {"version", LOCKSTEP_VERSION},
                  {"addresses", addresses},
                  {"port", local_address(back.door()).port}},
                 deadline);
    const Json hello = receive_message(fd.get(), deadline);
    const auto other = hello.at("host").get<std::string>();
    const std::string mine = local_address(fd.get()).host;
    const auto through = interface_of(interface_addresses(), mine);
    findings.push_back({Level::kOk, "way there",
                        other + " is reached at " + address.to_string() + " from " + mine +
                            (through ? " (" + *through + ")" : ""),
                        ""});
    judge_version(hello.at("version").get<std::string>(), findings);
    judge_clock_offset(measure_clock(fd.get(), deadline), findings);
    judge_path_mtu(fd.get(), findings);
    check_large(fd.get(), findings, deadline);
    send_message(fd.get(), {{"kind", "measured"}}, deadline);
    const Json outcomes = await_outcomes(fd.get(), back, deadline);
    judge_ways(outcomes.at("outcomes"), other, "this host", findings);
  } catch (const Error& error) {
    findings.push_back({Level::kProblem, "peer", std::string("it broke off: ") + error.what(),
                        "see what it says there"});
  } catch (const Json::exception&) {
    findings.push_back({Level::kProblem, "peer", "it speaks something else",
                        "use the same version of Lockstep on both hosts"});
  }
  return findings;
}

}  // namespace lockstep::inline v0::cli
