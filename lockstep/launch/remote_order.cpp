#include "lockstep/launch/remote_order.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Variables of this job's agent, or of the launching host.
constexpr std::array<std::string_view, 13> kNotForwarded = {
    "LOCKSTEP_SECRET",    "LOCKSTEP_SECRET_FILE", "LOCKSTEP_SECRET_FD",     "LOCKSTEP_STORE",
    "LOCKSTEP_BOARD_FD",  "LOCKSTEP_SPAWN_CALL",  "LOCKSTEP_TTY",           "LOCKSTEP_COLUMNS",
    "LOCKSTEP_INTERFACE", "LOCKSTEP_ROLES",       "LOCKSTEP_RESTART_COUNT", "LOCKSTEP_GENERATION",
    "LOCKSTEP_SPARE_FD"};

std::map<std::string, std::string> forwarded(const std::vector<std::string>& environment,
                                             const std::vector<std::string>& names) {
  std::map<std::string, std::string> env;
  for (const std::string& line : environment) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals);
    const bool ours =
        name.starts_with("LOCKSTEP_") &&
        std::find(kNotForwarded.begin(), kNotForwarded.end(), name) == kNotForwarded.end();
    if (ours || std::find(names.begin(), names.end(), name) != names.end())
      env[name] = line.substr(equals + 1);
  }
  return env;
}

json redirects_json(const RedirectMap& map) {
  json value = json::array();
  for (const auto& [rank, streams] : map) value.push_back({rank, static_cast<int>(streams)});
  return value;
}

json roles_json(const std::vector<Role>& roles) {
  json value = json::array();
  for (const Role& role : roles)
    value.push_back({role.name, role.ranks, role.restarts, role.service});
  return value;
}

std::vector<Role> roles_of(const json& value) {
  std::vector<Role> roles;
  for (const json& entry : value)
    roles.push_back({.name = entry.at(0),
                     .ranks = entry.at(1),
                     .restarts = entry.at(2),
                     .service = entry.at(3)});
  return roles;
}

RedirectMap redirects_of(const json& value) {
  RedirectMap map;
  for (const json& entry : value)
    map[entry.at(0).get<int>()] = static_cast<Redirect>(entry.at(1).get<int>());
  return map;
}

}  // namespace

RemoteOrder make_order(const LaunchOptions& options, const RemoteHost& remote,
                       const std::vector<HostPort>& endpoints, const std::string& directory,
                       const std::vector<std::string>& environment) {
  RemoteOrder order;
  order.directory = directory;
  order.env = forwarded(environment, options.nodes->forward);
  order.options = options;
  order.options.nproc = remote.ranks;
  NodesOptions& nodes = *order.options.nodes;
  nodes.server = NodesOptions::Server::kOther;
  nodes.number = remote.number;
  nodes.endpoints = endpoints;
  return order;
}

std::string encode(const RemoteOrder& order) {
  const LaunchOptions& o = order.options;
  const NodesOptions& nodes = *o.nodes;
  json endpoints = json::array();
  for (const HostPort& endpoint : nodes.endpoints)
    endpoints.push_back({{"host", endpoint.host}, {"port", endpoint.port}});
  json value = {{"directory", order.directory},
                {"env", order.env},
                {"command", o.command},
                {"program", o.program},
                {"nproc", o.nproc},
                {"rank_env", o.env},
                {"grace_ms", o.grace.count()},
                {"stop_grace_ms", o.stop_grace.count()},
                {"log_dir", o.log_dir},
                {"allow_lost_logs", o.allow_lost_logs},
                {"redirects", redirects_json(o.redirects)},
                {"tee", redirects_json(o.tee)},
                {"show_ranks", o.show_ranks},
                {"prefix", static_cast<int>(o.prefix)},
                {"prefix_template", o.prefix_template},
                {"substitute_local_rank", o.substitute_local_rank},
                {"pin", o.pin},
                {"threads_per_rank", o.threads_per_rank.value_or(0)},
                {"run_id", o.run_id},
                {"role", o.role},
                {"max_restarts", o.max_restarts},
                {"spare_ranks", o.spare_ranks},
                {"on_failure", static_cast<int>(on_failure_of(o))},
                {"simulate_failures",
                 o.simulate_failures
                     ? nlohmann::json{o.simulate_failures->every.count(), o.simulate_failures->seed}
                     : nlohmann::json()},
                {"roles", roles_json(o.roles)},
                {"nodes", nodes.nodes},
                {"number", nodes.number.value_or(0)},
                {"endpoints", endpoints},
                {"secret", nodes.secret.text()},
                {"join_timeout_ms", nodes.join_timeout.count()},
                {"beat_ms", nodes.beat.count()},
                {"silence_ms", nodes.silence.count()}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

RemoteOrder decode_remote_order(std::string_view line) {
  try {
    const json value = json::parse(line);
    RemoteOrder order;
    order.directory = value.at("directory");
    order.env = value.at("env").get<std::map<std::string, std::string>>();
    LaunchOptions& o = order.options;
    o.command = value.at("command").get<std::vector<std::string>>();
    o.program = value.at("program");
    o.nproc = value.at("nproc");
    o.env = value.at("rank_env").get<std::map<std::string, std::string>>();
    o.grace = milliseconds(value.at("grace_ms").get<int64_t>());
    o.stop_grace = milliseconds(value.at("stop_grace_ms").get<int64_t>());
    o.log_dir = value.at("log_dir");
    o.allow_lost_logs = value.at("allow_lost_logs");
    o.redirects = redirects_of(value.at("redirects"));
    o.tee = redirects_of(value.at("tee"));
    o.show_ranks = value.at("show_ranks").get<std::set<int>>();
    o.prefix = static_cast<LinePrefix>(value.at("prefix").get<int>());
    o.prefix_template = value.at("prefix_template");
    o.substitute_local_rank = value.at("substitute_local_rank");
    o.pin = value.at("pin");
    if (const int threads = value.at("threads_per_rank"); threads > 0) o.threads_per_rank = threads;
    o.run_id = value.at("run_id");
    o.role = value.at("role");
    o.max_restarts = value.at("max_restarts");
    o.spare_ranks = value.at("spare_ranks");
    o.on_failure = static_cast<OnFailure>(value.at("on_failure").get<int>());
    if (const auto& drill = value.at("simulate_failures"); !drill.is_null())
      o.simulate_failures = {std::chrono::milliseconds(drill.at(0).get<int64_t>()),
                             drill.at(1).get<uint64_t>()};
    o.roles = roles_of(value.at("roles"));
    o.quiet = true;  // the launching agent reports
    o.stdin_for_ranks = false;
    NodesOptions& nodes = o.nodes.emplace();
    nodes.server = NodesOptions::Server::kOther;
    nodes.nodes = value.at("nodes");
    nodes.number = value.at("number").get<int>();
    for (const json& endpoint : value.at("endpoints"))
      nodes.endpoints.push_back({endpoint.at("host"), endpoint.at("port")});
    nodes.secret = Secret::from_text(value.at("secret").get<std::string>());
    nodes.join_timeout = milliseconds(value.at("join_timeout_ms").get<int64_t>());
    nodes.beat = milliseconds(value.at("beat_ms").get<int64_t>());
    nodes.silence = milliseconds(value.at("silence_ms").get<int64_t>());
    return order;
  } catch (const json::exception& error) {
    // Without the library's message, which may quote the line with the secret in it.
    throw InvalidArgument(
        "the launching agent's order makes no sense; every host needs the same lockstep");
  }
}

std::vector<std::string> ssh_command(const std::vector<std::string>& ssh, const std::string& host,
                                     const std::string& program) {
  // Without a terminal, and without asking for passwords, which could not be entered. ssh itself
  // ends when the other host no longer answers.
  std::vector<std::string> command = ssh.empty() ? std::vector<std::string>{"ssh",
                                                                            "-T",
                                                                            "-x",
                                                                            "-o",
                                                                            "BatchMode=yes",
                                                                            "-o",
                                                                            "ServerAliveInterval=5",
                                                                            "-o",
                                                                            "ServerAliveCountMax=3"}
                                                 : ssh;
  command.push_back(host);
  command.push_back("exec " + shell_quoted(program) + " run " + kRemoteAgentFlag);
  return command;
}

}  // namespace lockstep::launch
