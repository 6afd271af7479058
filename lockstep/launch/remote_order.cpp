#include "lockstep/launch/remote_order.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/internal/message_json.h"

namespace lockstep::inline v0::launch {
namespace {

using nlohmann::json;

// Variables of this job's agent, or of the launching host.
constexpr std::array<std::string_view, 14> kNotForwarded = {
    "LOCKSTEP_SECRET",       "LOCKSTEP_SECRET_FILE",   "LOCKSTEP_SECRET_FD",
    "LOCKSTEP_STORE",        "LOCKSTEP_BOARD_FD",      "LOCKSTEP_SPAWN_CALL",
    "LOCKSTEP_TTY",          "LOCKSTEP_COLUMNS",       "LOCKSTEP_INTERFACE",
    "LOCKSTEP_ROLES",        "LOCKSTEP_RESTART_COUNT", "LOCKSTEP_GENERATION",
    "LOCKSTEP_SPARE_DEVICE", "LOCKSTEP_SPARE_FD"};

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

}  // namespace

RemoteOrder make_order(const LaunchOptions& options, const RemoteHost& remote,
                       const std::vector<HostPort>& endpoints, const std::string& directory,
                       const std::vector<std::string>& environment) {
  RemoteOrder order;
  order.directory = directory;
  order.env = forwarded(environment, options.nodes->forward);
  order.options = options;
  order.options.on_failure = on_failure_of(options);
  order.options.nproc = remote.ranks;
  NodesOptions& nodes = *order.options.nodes;
  nodes.server = NodesOptions::Server::kOther;
  nodes.number = remote.number;
  nodes.endpoints = endpoints;
  return order;
}

std::string encode(const RemoteOrder& order) {
  const json value = {{"directory", order.directory},
                      {"env", order.env},
                      {"options", order.options},
                      {"nodes", order.options.nodes.value()}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

RemoteOrder decode_remote_order(std::string_view line) {
  try {
    const json value = json::parse(line);
    RemoteOrder order{.directory = value.at("directory"),
                      .env = value.at("env").get<std::map<std::string, std::string>>(),
                      .options = value.at("options").get<LaunchOptions>()};
    order.options.quiet = true;  // the launching agent reports
    order.options.stdin_for_ranks = false;
    order.options.nodes = value.at("nodes").get<NodesOptions>();
    order.options.nodes->server = NodesOptions::Server::kOther;
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

}  // namespace lockstep::inline v0::launch
