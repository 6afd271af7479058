#include "lockstep/launch/launch_options.h"

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {

void check(const LaunchOptions& options) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument(what); };
  if (options.command.empty()) refuse("no program to launch");
  const bool starts_others = options.nodes && !options.nodes->remotes.empty();
  if (options.nproc < (starts_others ? 0 : 1))
    refuse(std::to_string(options.nproc) + " ranks asked for; at least 1 is needed");
  if (options.nproc > kMostRanksOfAHost)
    refuse(std::to_string(options.nproc) + " ranks asked for on one host; give at most " +
           std::to_string(kMostRanksOfAHost));
  if (options.max_restarts < 0) refuse("max-restarts must not be negative");
  if (options.grace.count() < 0) refuse("grace must not be negative");
  if (options.stop_grace.count() < 0) refuse("stop-grace must not be negative");
  if (options.threads_per_rank.value_or(1) < 1) refuse("threads per rank must be at least 1");
  if (options.master_port.value_or(0) < 0 || options.master_port.value_or(0) > 65535) {
    refuse("master port " + std::to_string(*options.master_port) + " is not from 0 to 65535");
  }
  if (options.nodes && options.nodes->min_nodes > options.nodes->nodes)
    refuse("at least " + std::to_string(options.nodes->min_nodes) +
           " hosts asked for, and at most " + std::to_string(options.nodes->nodes));
  if (options.on_failure == OnFailure::kStop && options.max_restarts > 0)
    refuse("max-restarts contradicts on-failure stop");
  if (options.on_failure == OnFailure::kShrink && options.max_restarts > 0)
    refuse("max-restarts contradicts on-failure shrink, which starts no rank");
  if (options.on_failure == OnFailure::kShrink && options.nodes)
    refuse(
        "on-failure shrink is for the ranks of one host; use restart, which goes on with the hosts "
        "that are left");
  if (options.on_failure == OnFailure::kReplace && options.max_restarts == 0)
    refuse("on-failure replace needs max-restarts: how often a rank may be replaced");
  check_spare_ranks(options);
  check_spare_nodes(options);
  check_roles(options.roles);
  if (!options.roles.empty() && !options.nodes && rank_count(options.roles) != options.nproc)
    refuse(std::to_string(options.nproc) + " ranks asked for, but the roles have " +
           std::to_string(rank_count(options.roles)) + " (" + role_ranges(options.roles) + ")");
  for (const Role& role : options.roles) {
    if (role.restarts > 0 && options.max_restarts > 0)
      refuse("max-restarts starts all ranks anew, restarts of role '" + role.name +
             "' one alone; give one of them");
  }
  for (const RedirectMap* map : {&options.redirects, &options.tee}) {
    for (const auto& [rank, streams] : *map) {
      if (rank >= options.nproc && !options.nodes) {
        refuse("redirects or tee name local rank " + std::to_string(rank) +
               ", but there are only " + std::to_string(options.nproc) + " ranks");
      }
    }
  }
  for (const int rank : options.show_ranks) {
    if (rank < 0 || (rank >= options.nproc && !options.nodes))
      refuse("there is no local rank " + std::to_string(rank) + " to show");
  }
}

OnFailure on_failure_of(const LaunchOptions& options) {
  const OnFailure usual = options.max_restarts > 0 ? OnFailure::kRestart : OnFailure::kStop;
  return options.on_failure.value_or(usual);
}

void check_spare_ranks(const LaunchOptions& options) {
  if (options.spare_ranks == 0) return;
  const std::string given = "--spare-ranks=" + std::to_string(options.spare_ranks);
  if (options.spare_ranks < 0 || options.spare_ranks > kMostRanksOfAHost)
    throw InvalidArgument(given + ": expected a number of spares from 0 to " +
                          std::to_string(kMostRanksOfAHost));
  if (on_failure_of(options) != OnFailure::kReplace)
    throw InvalidArgument(given +
                          " needs --on-failure=replace: a spare takes a failed rank's place");
  const auto has_macro = [](const std::string& word) {
    return word.find(kLocalRankMacro) != std::string::npos;
  };
  if (options.substitute_local_rank &&
      std::any_of(options.command.begin() + 1, options.command.end(), has_macro))
    throw InvalidArgument(
        given + " does not go with " + std::string(kLocalRankMacro) +
        " in the command line (--no-use-env puts it there): a spare is started before it has "
        "a rank; let the program read LOCAL_RANK after init()");
}

void check_spare_nodes(const LaunchOptions& options) {
  if (!options.nodes || options.nodes->spare_nodes == 0) return;
  const NodesOptions& nodes = *options.nodes;
  const std::string given = "--spare-nodes=" + std::to_string(nodes.spare_nodes);
  const auto refuse = [&](const std::string& why) { throw InvalidArgument(given + why); };
  if (nodes.spare_nodes < 0) refuse(": expected a number of hosts");
  if (on_failure_of(options) != OnFailure::kReplace)
    refuse(" needs --on-failure=replace: a spare host takes a lost one's place");
  if (nodes.min_nodes > 0 && nodes.min_nodes < nodes.nodes)
    refuse(" contradicts --nnodes=" + std::to_string(nodes.min_nodes) + ":" +
           std::to_string(nodes.nodes) + ", which goes on with fewer hosts; give one of them");
  if (nodes.server == NodesOptions::Server::kWhoeverCan && nodes.endpoints.size() > 1)
    refuse(
        " does not go with a second --rdzv-endpoint: spare hosts would change who has the "
        "majority; use --rdzv-backend etcd, which elects the agent that leads");
}

std::optional<OnFailure> parse_on_failure(const std::string& text, int max_restarts) {
  if (text.empty()) return std::nullopt;
  if (text == "restart") return OnFailure::kRestart;
  if (text == "replace") {
    if (max_restarts == 0)
      throw InvalidArgument(
          "--on-failure=replace needs --max-restarts=N: how often a rank may be replaced");
    return OnFailure::kReplace;
  }
  if (text != "stop" && text != "shrink")
    throw InvalidArgument("--on-failure=" + text + ": expected stop, restart, replace or shrink");
  if (max_restarts > 0)
    throw InvalidArgument("--on-failure=" + text +
                          " contradicts --max-restarts=" + std::to_string(max_restarts));
  return text == "stop" ? OnFailure::kStop : OnFailure::kShrink;
}

}  // namespace lockstep::inline v0::launch
