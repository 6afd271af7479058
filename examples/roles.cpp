// A parameter server and its trainers, two roles of one job:
//
//   lockstep run --role ps=1,restarts=3 --role trainer=2 roles
//
// The server is killed in the middle, is started again alone, and goes on from what it left in the
// job's store; the trainers only wait a little longer. Without roles rank 0 is the server, under
// lockstep run or Open MPI's mpirun, where the store outlives it.
#include <lockstep/comm/job_store.h>
#include <lockstep/core/env.h>
#include <lockstep/launch/job_environment.h>
#include <signal.h>

#include <cstdio>
#include <string>

using lockstep::Deadline, lockstep::Store;

constexpr int kStepsOfATrainer = 3;

std::string key(const char* name, int64_t step) {
  return std::string(name) + "/" + std::to_string(step);
}

double number(Store& store, const std::string& at) {
  return std::stod(store.get(at, Deadline::seconds(60)));
}

// Follows the gradients to the lowest point of (w - 3)^2.
void serve(Store& store, int steps, bool dies) {
  store.set(key("weight", 0), "0");
  for (int step = 0; step < steps; ++step) {
    if (store.try_get(key("weight", step + 1))) continue;  // of an earlier life
    const double gradient = number(store, key("gradient", step));
    if (dies && step == steps / 2) ::raise(SIGKILL);
    const double weight = number(store, key("weight", step)) - 0.25 * gradient;
    store.set(key("weight", step + 1), std::to_string(weight));
  }
  std::printf("weight %g after %d steps\n", number(store, key("weight", steps)), steps);
}

void train(Store& store) {
  for (int i = 0; i < kStepsOfATrainer; ++i) {
    const int64_t step = store.add("steps", 1) - 1;
    const double weight = number(store, key("weight", step));
    store.set(key("gradient", step), std::to_string(2 * (weight - 3)));
    number(store, key("weight", step + 1));  // it was taken
  }
}

int main() {
  const auto job = lockstep::launch::read_job_environment(lockstep::process_env());
  const auto role = lockstep::launch::job_role();
  const bool server = role.roles.size() > 1 ? role.name == "ps" : job.rank == 0;
  const int trainers = role.roles.size() > 1 ? role.ranks_of("trainer").count : job.world_size - 1;

  const auto store = lockstep::job_store(Deadline::seconds(60));
  if (server) {
    serve(*store, kStepsOfATrainer * trainers, job.own_restarts == 0);
  } else {
    train(*store);
  }
}
