// The messages of agents as JSON: each struct has the members that are listed here, under their own
// names. A message in which one of a struct's listed members is missing is a json::exception.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/secret.h"
#include "lockstep/launch/agent_message.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/worker_failure.h"

namespace nlohmann {

template <typename T>
struct adl_serializer<std::optional<T>> {
  static void to_json(json& value, const std::optional<T>& member) {
    value = member ? json(*member) : json();
  }
  static void from_json(const json& value, std::optional<T>& member) {
    member = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
  }
};

template <>
struct adl_serializer<std::chrono::milliseconds> {
  static void to_json(json& value, std::chrono::milliseconds time) { value = time.count(); }
  static void from_json(const json& value, std::chrono::milliseconds& time) {
    time = std::chrono::milliseconds(value.get<int64_t>());
  }
};

template <>
struct adl_serializer<lockstep::Secret> {
  static void to_json(json& value, const lockstep::Secret& secret) { value = secret.text(); }
  static void from_json(const json& value, lockstep::Secret& secret) {
    secret = lockstep::Secret::from_text(value.get<std::string>());
  }
};

}  // namespace nlohmann

namespace lockstep::inline v0 {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostPort, host, port)
}  // namespace lockstep::inline v0

namespace lockstep::inline v0::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeIntroduction, number, host, address, pid, ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodePlan, node_rank, nodes, first_rank, local_ranks, world_size,
                                   master, store, generation, restarts, joins, moves, job)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Formation, generation, begun, by, agents)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankSight, host, rank, pid, stopped_by, end, ended_badly,
                                   last_collective, gave_up, late)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkerFailure, host, rank, role, restarts, local_rank, pid,
                                   exit_code, signal, last_collective, message, complete, tail,
                                   tail_stream, gave_up, late, causes, waited)
// All but the kind.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AgentMessage, generation, agent, introduction, nodes, min_nodes,
                                   run_id, port, seen, restarts, ran_with, old_ranks_for, finished,
                                   well, past_end, stood_still, lost_output, job, endpoint, plan,
                                   known, failure, sights, number, exit_code, text)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FailureDrill, every, seed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Binding, given, to, by, in_a_row, cores, overload)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Role, name, ranks, restarts, service)
// The options that agents of other hosts are told. They find out the rest for their own host.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodesOptions, nodes, spare_nodes, number, endpoints, secret,
                                   join_timeout, beat, silence)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchOptions, command, program, nproc, roles, env, grace,
                                   stop_grace, max_restarts, spare_ranks, on_failure,
                                   simulate_failures, log_dir, allow_lost_logs, redirects, tee,
                                   show_ranks, prefix, prefix_template, substitute_local_rank, pin,
                                   binding, report_bindings, threads_per_rank, run_id, role)

}  // namespace lockstep::inline v0::launch
