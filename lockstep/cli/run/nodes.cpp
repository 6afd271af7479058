#include "lockstep/cli/run/nodes.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "lockstep/cli/run/host_choice.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/named_file.h"
#include "lockstep/launch/host_list.h"

namespace lockstep::inline v0::cli {
namespace {

using launch::HostSlots;
using launch::NodesOptions;
using std::chrono::milliseconds;

// torchrun has the same defaults.
constexpr int kDefaultStaticPort = 29500;
constexpr int kDefaultDynamicPort = 29400;
constexpr int kEtcdPort = 2379;

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string given_spares(const RunFlags& flags) {
  return "--spare-nodes=" + std::to_string(flags.spare_nodes);
}

struct NodeCount {
  int min = 1, max = 1;
};

// Parses --nnodes: N, or MIN:MAX as torchrun has it.
NodeCount count_nodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto min = parse_int(std::string_view(text).substr(0, colon), 1, 1 << 20);
  const auto max = colon == std::string::npos
                       ? min
                       : parse_int(std::string_view(text).substr(colon + 1), 1, 1 << 20);
  if (!min || !max)
    throw UsageError("--nnodes=" + text + ": expected a number of hosts, such as 2 or 2:4");
  if (*min > *max)
    throw UsageError("--nnodes=" + text + ": at least " + std::to_string(*min) +
                     " hosts and at most " + std::to_string(*max) +
                     " contradict each other; the smaller number comes first");
  return {static_cast<int>(*min), static_cast<int>(*max)};
}

Secret need_shared_secret(const MachineFacts& machine) {
  if (auto secret = Secret::from_env(machine.env)) return *secret;
  throw UsageError(
      "several hosts need a secret that all of them have: run 'openssl rand -hex 32 > FILE; chmod "
      "600 FILE' once, copy FILE to every host, and set LOCKSTEP_SECRET_FILE=FILE there (or "
      "LOCKSTEP_SECRET to its content)");
}

HostPort endpoint_of(const std::string& flag, const std::string& text, int default_port) {
  const bool has_port = text.ends_with(']')
                            ? false
                            : text.find(':') != std::string::npos &&
                                  (text.front() == '[' || text.find(':') == text.rfind(':'));
  std::string host = text;
  if (!has_port && host.front() == '[') host = host.substr(1, host.size() - 2);
  const HostPort endpoint =
      has_port ? parse_host_port(text) : HostPort{host, static_cast<uint16_t>(default_port)};
  if (endpoint.port == 0) {
    throw UsageError(flag + "=" + text +
                     ": port 0 cannot be found by the other hosts; give a number");
  }
  return endpoint;
}

std::string read_password(const std::string& file) {
  std::string text;
  try {
    text = read_named_file(file);
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string("--rdzv-conf: password-file: ") + error.what());
  }
  const std::string password = text.substr(0, text.find('\n'));
  if (password.empty())
    throw UsageError("--rdzv-conf: the first line of '" + file + "', the password, is empty");
  return password;
}

// Sets the options by which etcd is reached, under torchrun's names and etcdctl's. False: the key
// is another one.
bool read_etcd_conf(const std::string& key, const std::string& value, launch::EtcdAccess& etcd) {
  if (key == "protocol") {
    if (value != "http" && value != "https")
      throw UsageError("--rdzv-conf: protocol=" + value + ": expected http or https");
    etcd.tls = value == "https";
  } else if (key == "cacert" || key == "ca_cert") {
    etcd.ca_cert = value;
  } else if (key == "cert" || key == "ssl_cert") {
    etcd.cert = value;
  } else if (key == "key" || key == "ssl_cert_key") {
    etcd.key = value;
  } else if (key == "user") {
    etcd.user = value;
  } else if (key == "password-file" || key == "password_file") {
    etcd.password = read_password(value);
  } else {
    return false;
  }
  if (key != "protocol" && key.find("cert") != std::string::npos) etcd.tls = true;
  return true;
}

// Parses torchrun's --rdzv-conf, "key=value,...". Its other keys are known, and set nothing here.
void read_conf(const std::string& text, NodesOptions& nodes) {
  static constexpr std::array<std::string_view, 7> kWithoutEffect = {
      "close_timeout", "read_timeout", "store_type",       "is_host",
      "rank",          "use_libuv",    "heartbeat_timeout"};
  double attempts = 8;
  for (const std::string& pair : split_at(text, ',')) {
    const auto equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : pair.substr(equals + 1);
    if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end())
      continue;
    const bool timeout = key == "timeout" || key == "join_timeout";
    const bool last_call = key == "last_call_timeout";
    if (nodes.server == NodesOptions::Server::kElected && read_etcd_conf(key, value, nodes.etcd))
      continue;
    if (!timeout && !last_call && key != "keep_alive_interval" && key != "keep_alive_max_attempt") {
      throw UsageError("--rdzv-conf: there is no '" + key +
                       "'; join_timeout, last_call_timeout, keep_alive_interval and "
                       "keep_alive_max_attempt have an effect");
    }
    const auto number = parse_double(value);
    if (last_call && number == 0) {
      nodes.last_call = milliseconds(0);
      continue;
    }
    if (!number || *number <= 0 || *number > 1e6)
      throw UsageError("--rdzv-conf: " + key + "=" + value + ": expected a number above 0");
    const milliseconds time(static_cast<int64_t>(*number * 1000));
    if (timeout) nodes.join_timeout = time;
    if (last_call) nodes.last_call = time;
    if (key == "keep_alive_interval") nodes.beat = std::max(time, milliseconds(10));
    if (key == "keep_alive_max_attempt") attempts = std::max(2.0, *number);
  }
  if (!nodes.etcd.password.empty() && nodes.etcd.user.empty())
    throw UsageError("--rdzv-conf: a password needs user=NAME");
  nodes.silence =
      milliseconds(static_cast<int64_t>(static_cast<double>(nodes.beat.count()) * attempts));
}

NodesOptions by_number(const RunFlags& flags, int count) {
  NodesOptions nodes;
  if ((!flags.master_addr && flags.rdzv_endpoint.empty()) || !flags.node_rank) {
    throw UsageError("--nnodes=" + flags.nnodes +
                     " needs, on every host, --node-rank and the address of the host with number 0 "
                     "(--master-addr), or else --rdzv-endpoint; or -H HOST:SLOTS,... on one host");
  }
  if (*flags.node_rank < 0 || *flags.node_rank >= count + flags.spare_nodes) {
    throw UsageError("--node-rank=" + std::to_string(*flags.node_rank) +
                     " contradicts --nnodes=" + flags.nnodes +
                     (flags.spare_nodes > 0 ? " and " + given_spares(flags) : std::string()) +
                     ": hosts count from 0");
  }
  nodes.number = flags.node_rank;
  nodes.server = *flags.node_rank == 0 ? NodesOptions::Server::kThis : NodesOptions::Server::kOther;
  if (flags.master_addr) {
    const int port = flags.master_port.value_or(kDefaultStaticPort);
    if (port < 1 || port > 65535)
      throw UsageError("--master-port=" + std::to_string(port) + " is not from 1 to 65535");
    nodes.endpoints = {{*flags.master_addr, static_cast<uint16_t>(port)}};
  } else {
    if (flags.rdzv_endpoint.find(',') != std::string::npos)
      throw UsageError("--rdzv-endpoint=" + flags.rdzv_endpoint +
                       ": a second endpoint goes without --node-rank and --rdzv-backend static");
    nodes.endpoints = {endpoint_of("--rdzv-endpoint", flags.rdzv_endpoint, kDefaultStaticPort)};
  }
  return nodes;
}

NodesOptions by_endpoint(const RunFlags& flags) {
  if (flags.rdzv_endpoint.empty()) {
    throw UsageError("--rdzv-backend=c10d needs --rdzv-endpoint HOST:PORT, the same on every host");
  }
  NodesOptions nodes;
  nodes.server = NodesOptions::Server::kWhoeverCan;
  for (const std::string& endpoint : split_at(flags.rdzv_endpoint, ','))
    nodes.endpoints.push_back(endpoint_of("--rdzv-endpoint", endpoint, kDefaultDynamicPort));
  return nodes;
}

NodesOptions by_etcd(const RunFlags& flags) {
  if (flags.rdzv_endpoint.empty())
    throw UsageError("--rdzv-backend=etcd needs --rdzv-endpoint HOST:PORT, where etcd is");
  if (flags.rdzv_id.empty() || flags.rdzv_id == "none")
    throw UsageError(
        "--rdzv-backend=etcd needs --rdzv-id, the job's name: it tells its keys from other jobs'");
  NodesOptions nodes;
  nodes.server = NodesOptions::Server::kElected;
  for (const std::string& endpoint : split_at(flags.rdzv_endpoint, ','))
    nodes.etcd.endpoints.push_back(endpoint_of("--rdzv-endpoint", endpoint, kEtcdPort));
  return nodes;
}

bool is_this_host(const std::string& host, const MachineFacts& machine) {
  return host == "localhost" || is_loopback(host) || host == machine.host_name ||
         interface_of(machine.addresses, host).has_value();
}

NodesPlan by_host_list(const RunFlags& flags, const MachineFacts& machine, const Mapping& mapping,
                       std::optional<int> nproc) {
  const HostChoice choice = choose_hosts(flags, mapping.per_host, mapping.placing.oversubscribe);
  if (flags.nnodes != "1" || flags.node_rank.value_or(0) != 0 || !flags.rdzv_endpoint.empty()) {
    throw UsageError(choice.source +
                     " starts the other hosts' agents itself: leave --nnodes, --node-rank and "
                     "--rdzv-endpoint out");
  }
  const auto spares = static_cast<size_t>(std::max(0, flags.spare_nodes));
  if (spares >= choice.hosts.size())
    throw UsageError(given_spares(flags) + ": " + choice.source + " has " +
                     std::to_string(choice.hosts.size()) +
                     " hosts, and at least one must have ranks");
  const auto first_spare = choice.hosts.end() - static_cast<std::ptrdiff_t>(spares);
  const std::vector<HostSlots> to_fill(choice.hosts.begin(), first_spare);
  int slots = 0;
  for (const HostSlots& host : to_fill) slots += host.slots;
  std::vector<HostSlots> used =
      launch::fill_hosts(to_fill, nproc.value_or(slots), mapping.placing, choice.source);
  NodesPlan plan;
  plan.nproc = 0;
  plan.devices = choice.devices;
  NodesOptions nodes;
  nodes.nodes = static_cast<int>(used.size());
  used.insert(used.end(), first_spare, choice.hosts.end());
  for (const HostSlots& host : used) {
    const int number = static_cast<int>(nodes.names.size());
    nodes.names.push_back(host.host);
    if (!is_this_host(host.host, machine)) {
      nodes.remotes.push_back({host.host, number, host.slots});
      continue;
    }
    if (nodes.number) {
      throw UsageError((flags.hosts.empty() ? choice.source : "-H " + flags.hosts) + ": " +
                       host.host + " and " + nodes.names[static_cast<size_t>(*nodes.number)] +
                       " are both this host; name it once");
    }
    nodes.number = number;
    plan.nproc = host.slots;
  }
  if (nodes.number.value_or(0) >= nodes.nodes)
    throw UsageError(given_spares(flags) + ": " + nodes.names[static_cast<size_t>(*nodes.number)] +
                     " is this host, which leads the job and cannot be lost; name others last");
  if (nodes.remotes.empty()) return plan;
  nodes.server = NodesOptions::Server::kThis;
  nodes.ssh = split_at(
      flags.ssh_command.empty() ? machine.env("LOCKSTEP_SSH").value_or("") : flags.ssh_command,
      ' ');
  for (const std::string& variable : flags.forward) {
    if (variable.find('=') == std::string::npos) nodes.forward.push_back(variable);
  }
  plan.nodes = std::move(nodes);
  return plan;
}

}  // namespace

NodesPlan plan_nodes(const RunFlags& flags, const MachineFacts& machine, const Mapping& mapping,
                     std::optional<int> nproc) {
  const std::string& backend = flags.rdzv_backend;
  const bool elected = backend == "etcd" || backend == "etcd-v2";
  if (!backend.empty() && backend != "static" && backend != "c10d" && !elected) {
    throw UsageError("--rdzv-backend=" + backend +
                     " is not supported; there are static, c10d and etcd");
  }
  NodesPlan plan;
  if (!flags.exclude.empty() && !flags.names_hosts())
    throw UsageError("--exclude=" + flags.exclude + " needs the hosts: give --hostfile or -H");
  if (flags.names_hosts()) {
    plan = by_host_list(flags, machine, mapping, nproc);
  } else {
    const auto [least, count] = count_nodes(flags.nnodes);
    if (count == 1) {
      if (flags.node_rank.value_or(0) != 0) {
        throw UsageError("--node-rank=" + std::to_string(*flags.node_rank) +
                         ": the only host of --nnodes=1 has number 0");
      }
      if (flags.spare_nodes > 0)
        throw UsageError(given_spares(flags) +
                         " needs --nnodes: when the only host is lost, no rank goes on");
      return plan;
    }
    if (flags.standalone) throw UsageError("--standalone contradicts --nnodes=" + flags.nnodes);
    const bool numbered = backend == "static" || (backend.empty() && flags.rdzv_endpoint.empty());
    plan.nodes = numbered ? by_number(flags, count) : elected ? by_etcd(flags) : by_endpoint(flags);
    plan.nodes->nodes = count;
    plan.nodes->min_nodes = least;
    if (!numbered && flags.node_rank) {
      plan.notes.emplace_back(
          "--node-rank is ignored with --rdzv-endpoint: hosts are ordered by name (--rdzv-backend "
          "static orders them by number)");
    }
    plan.nodes->secret = need_shared_secret(machine);
  }
  if (!plan.nodes) return plan;
  plan.nodes->spare_nodes = flags.spare_nodes;
  read_conf(flags.rdzv_conf, *plan.nodes);
  plan.nodes->interface = flags.interface;
  if (!flags.interface.empty()) candidate_addresses(machine.addresses, flags.interface);
  return plan;
}

}  // namespace lockstep::inline v0::cli
