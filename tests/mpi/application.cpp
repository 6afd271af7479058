// An MPI program with its own messages that trains through Lockstep. from_mpi_test.py starts it under each MPI:
//
//   application SCENARIO DIRECTORY [BACKEND]
//
// A rank writes what it found to the file rankN of the directory.
#include <lockstep/core/errors.h>
#include <lockstep/mpi.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <mpi.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

// How long this process stays before MPI_Comm_create_group.
std::chrono::seconds late_in_create_group{0};

}  // namespace

// In place of MPI's own where Lockstep looks for MPI in the program's scope.
extern "C" __attribute__((visibility("default"))) int MPI_Comm_create_group(MPI_Comm comm,
                                                                            MPI_Group group,
                                                                            int tag,
                                                                            MPI_Comm* made) {
  std::this_thread::sleep_for(late_in_create_group);
  return PMPI_Comm_create_group(comm, group, tag, made);
}

namespace {

constexpr int kSteps = 5;
constexpr int64_t kRows = 12;  // of all ranks together

struct Place {
  int rank = 0;
  int size = 1;
};

Place place_in(MPI_Comm comm) {
  Place place;
  MPI_Comm_rank(comm, &place.rank);
  MPI_Comm_size(comm, &place.size);
  return place;
}

class Report {
 public:
  Report(const std::filesystem::path& directory, int rank)
      : file_(directory / ("rank" + std::to_string(rank))) {}
  void say(const std::string& line) { file_ << line << std::endl; }

 private:
  std::ofstream file_;
};

torch::nn::Sequential small_model(int64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1));
  model->to(torch::kDouble);
  return model;
}

// The same on all ranks.
at::Tensor inputs_of_step(int step) {
  return torch::sin(torch::arange(kRows * 3, torch::kDouble) * (0.1 * (step + 1))).view({kRows, 3});
}
at::Tensor targets_of(const at::Tensor& inputs) {
  return inputs.sum(1, true).cos();
}

double difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  double most = 0;
  const auto other = b.parameters();
  size_t i = 0;
  for (const at::Tensor& p : a.parameters())
    most = std::max(most, (p - other[i++]).abs().max().item<double>());
  return most;
}

// Trains on this rank's rows of each step; `between` runs the program's own work.
template <typename Between>
torch::nn::Sequential train(lockstep::Communicator& comm, int64_t seed, const Between& between) {
  // Rank 0's values count.
  torch::nn::Sequential module = small_model(seed + comm.rank());
  lockstep::DistributedDataParallel model(module, comm);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const int64_t rows = kRows / comm.size();
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor inputs = inputs_of_step(step).narrow(0, comm.rank() * rows, rows);
    optimizer.zero_grad();
    torch::mse_loss(model(inputs), targets_of(inputs)).backward();
    optimizer.step();
    between();
  }
  return module;
}

torch::nn::Sequential train_alone(int64_t seed) {
  torch::nn::Sequential model = small_model(seed);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor inputs = inputs_of_step(step);
    optimizer.zero_grad();
    torch::mse_loss(model->forward(inputs), targets_of(inputs)).backward();
    optimizer.step();
  }
  return model;
}

// Messages of the program's own that are under way while Lockstep works.
class Traffic {
 public:
  explicit Traffic(Place place) : sent_(kWords, place.rank), received_(kWords, -1) {
    from_ = (place.rank + place.size - 1) % place.size;
    MPI_Irecv(received_.data(), kWords, MPI_INT, from_, 7, MPI_COMM_WORLD, &requests_[0]);
    MPI_Isend(sent_.data(), kWords, MPI_INT, (place.rank + 1) % place.size, 7, MPI_COMM_WORLD,
              &requests_[1]);
  }
  bool finish() {
    MPI_Waitall(2, requests_, MPI_STATUSES_IGNORE);
    return received_.front() == from_ && received_.back() == from_;
  }

 private:
  static constexpr int kWords = 200'000;
  std::vector<int> sent_, received_;
  int from_ = 0;
  MPI_Request requests_[2] = {};
};

// Two models on two communicators, beside the program's own messages.
void numbers(Report& report, const lockstep::FromMpiOptions& options) {
  const Place world = place_in(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, -world.rank, &half);
  {
    Traffic traffic(world);
    lockstep::Communicator all = lockstep::from_mpi(MPI_COMM_WORLD, options);
    lockstep::Communicator part = lockstep::from_mpi(half, options);
    const Place in_half = place_in(half);
    report.say("backend " + all.capabilities().backend + " rank " + std::to_string(all.rank()) +
               " of " + std::to_string(all.size()));
    report.say(std::string("order of the communicator: ") +
               (part.rank() == in_half.rank && part.size() == in_half.size ? "kept" : "lost"));
    int sum = 0;
    const auto between = [&] {
      int one = 1;
      int now = 0;
      MPI_Allreduce(&one, &now, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      sum += now;
    };
    const auto first = train(all, 1, between);
    const auto second = train(part, 2, between);
    report.say("first model differs by " +
               std::to_string(difference(*first, *train_alone(1)) * 1e10) + "e-10");
    report.say("second model differs by " +
               std::to_string(difference(*second, *train_alone(2)) * 1e10) + "e-10");
    report.say(std::string("the program's messages: ") +
               (traffic.finish() && sum == 2 * kSteps * world.size ? "right" : "wrong"));
    // A group of Lockstep's own from it.
    const auto pair = all.split(all.rank() % 2);
    const at::Tensor ranks = torch::full({1}, all.rank(), torch::kLong);
    lockstep::Communicator(*pair).all_reduce(ranks);
    int64_t expected = 0;
    for (int r = world.rank % 2; r < world.size; r += 2) expected += r;
    report.say(std::string("split: ") + (ranks.item<int64_t>() == expected ? "right" : "wrong"));
    // The same ranks in the opposite order.
    const auto turned = all.split(0, -all.rank());
    at::Tensor word = torch::full({1}, all.rank(), torch::kLong);
    lockstep::Communicator(*turned).broadcast(word, 0);
    report.say(std::string("opposite order: ") +
               (word.item<int64_t>() == world.size - 1 ? "right" : "wrong"));
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    report.say(std::string("error handler: ") +
               (handler == MPI_ERRORS_RETURN ? "the program's" : "changed"));
  }
  MPI_Comm_free(&half);
}

// Fewer trainers than ranks; the communicator outlives MPI.
void trainers(Report& report, const lockstep::FromMpiOptions& options) {
  const Place world = place_in(MPI_COMM_WORLD);
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank < 2 ? 0 : MPI_UNDEFINED, 0, &some);
  std::optional<lockstep::Communicator> comm;
  if (some != MPI_COMM_NULL) {
    comm = lockstep::from_mpi(some, options);
    MPI_Comm_free(&some);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  if (!comm) {
    report.say("no trainer");
    return;
  }
  const auto model = train(*comm, 3, [] {});
  // MPI_THREAD_FUNNELED, and MPI is finalised: another thread may end it all the same.
  std::thread([&] { comm.reset(); }).join();
  report.say(difference(*model, *train_alone(3)) < 1e-10 ? "trained after MPI_Finalize"
                                                         : "differs");
}

template <typename Call>
void say_refusal(Report& report, const Call& call) {
  try {
    call();
    report.say("no error");
  } catch (const lockstep::InvalidArgument& error) {
    report.say(error.what());
  } catch (const std::exception& error) {
    report.say("another error: " + std::string(error.what()));
  }
}

// Ranks that want different engines, as when a variable reaches some hosts only.
void differ(Report& report, lockstep::FromMpiOptions options) {
  options.backend = place_in(MPI_COMM_WORLD).rank == 0 ? "tcp" : "shm";
  say_refusal(report, [&] { lockstep::from_mpi(MPI_COMM_WORLD, options); });
}

// Backend mpi under MPI_THREAD_FUNNELED. Rank 0 makes each call on a thread that must not call MPI
// first; the group stays in step.
void other_thread(Report& report, lockstep::FromMpiOptions options) {
  options.backend = "mpi";
  std::optional<lockstep::Communicator> comm = lockstep::from_mpi(MPI_COMM_WORLD, options);
  const auto refused = [&](const auto& call) {
    if (comm->rank() != 0) return;
    std::thread([&] { say_refusal(report, call); }).join();
  };
  const auto add_up = [&](lockstep::Communicator group) {
    const at::Tensor sum = torch::full({1}, group.rank() + 1, torch::kLong);
    group.all_reduce(sum);
    return sum.item<int64_t>() == group.size() * (group.size() + 1) / 2 ? "right" : "wrong";
  };
  refused([&] { comm->all_reduce(torch::ones({3})); });
  report.say(std::string("sum: ") + add_up(*comm));
  at::Tensor one = torch::ones({3});
  lockstep::Work work = comm->iall_reduce(one);
  refused([&] { work.wait(); });
  refused([&] { work.test(); });
  refused([&] { comm->progress(); });
  work.wait();
  report.say(std::string("work: ") +
             (one[2].item<float>() == static_cast<float>(comm->size()) ? "right" : "wrong"));
  refused([&] { comm->split(0, -comm->rank()); });
  report.say(std::string("group: ") + add_up(*comm->split(0, -comm->rank())));
  std::thread([&] { comm.reset(); }).join();
  report.say("freed");
}

// A group of which rank 1 comes to all but MPI's own call: it never does, or is late.
void stuck(Report& report, bool late) {
  {
    const std::chrono::seconds timeout(late ? 3 : 8);
#ifdef MPI_ABI
    const int number = MPI_Comm_toint(MPI_COMM_WORLD);
#else
    const int number = MPI_Comm_c2f(MPI_COMM_WORLD);
#endif
    // By its number: Lockstep then looks for MPI in the program's scope.
    lockstep::Communicator comm =
        lockstep::from_mpi_fint(number, {.backend = "mpi", .timeout = timeout});
    if (comm.rank() == 1) late_in_create_group = late ? timeout * 2 : std::chrono::hours(1);
    const auto say = [&](const auto& call) {
      try {
        call();
        report.say("no error");
      } catch (const std::exception& error) {
        const bool timeout = dynamic_cast<const lockstep::Timeout*>(&error) != nullptr;
        report.say((timeout ? "Timeout: " : "another error: ") + std::string(error.what()));
      }
    };
    say([&] { comm.split(0, -comm.rank()); });
    if (late) return report.say("still here");
    say([&] { comm.barrier(); });
    say([&] { lockstep::from_mpi(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(8)}); });
  }
  report.say("freed");
}

// Rank 1 dies; the others get an exception, and end in order.
void killed(Report& report, const lockstep::FromMpiOptions& options) {
  lockstep::Communicator comm = lockstep::from_mpi(MPI_COMM_WORLD, options);
  comm.barrier();
  if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
  try {
    while (true) comm.all_reduce(torch::zeros({1000}));
  } catch (const lockstep::PeerLost& error) {
    report.say("PeerLost: " + std::string(error.what()));
  } catch (const lockstep::Error& error) {
    report.say("another error: " + std::string(error.what()));
  }
}

void late(Report& report, lockstep::FromMpiOptions options) {
  options.timeout = std::chrono::seconds(2);
  if (place_in(MPI_COMM_WORLD).rank == 1) std::this_thread::sleep_for(std::chrono::seconds(6));
  try {
    lockstep::from_mpi(MPI_COMM_WORLD, options);
    report.say("no error");
  } catch (const lockstep::Timeout& error) {
    report.say("Timeout: " + std::string(error.what()));
  } catch (const lockstep::Error& error) {
    report.say("another error: " + std::string(error.what()));
  }
}

void mistakes(Report& report) {
  const Place world = place_in(MPI_COMM_WORLD);
  say_refusal(report, [] { lockstep::from_mpi(MPI_COMM_NULL); });
  say_refusal(report, [] { lockstep::from_mpi(MPI_COMM_WORLD, {.backend = "pigeon"}); });
  std::thread([&] { say_refusal(report, [] { lockstep::from_mpi(MPI_COMM_WORLD); }); }).join();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, 0, &part);
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, 1 - world.rank % 2, 3, &between);
  say_refusal(report, [&] { lockstep::from_mpi(between); });
  MPI_Comm_free(&between);
  MPI_Comm_free(&part);
  MPI_Finalize();
  say_refusal(report, [] { lockstep::from_mpi_fint(0); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string scenario = argv[1];
  at::set_num_threads(1);
  if (scenario == "uninitialised") {
    Report report(argv[2], 0);
    say_refusal(report, [] { lockstep::from_mpi_fint(0, {}, reinterpret_cast<void*>(&MPI_Init)); });
    return 0;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv,
                  scenario == "stuck_serialized" ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED,
                  &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  Report report(argv[2], place_in(MPI_COMM_WORLD).rank);
  lockstep::FromMpiOptions options{.timeout = std::chrono::seconds(30)};
  if (argc > 3) options.backend = argv[3];
  if (scenario == "numbers") numbers(report, options);
  if (scenario == "killed") killed(report, options);
  if (scenario == "late") late(report, options);
  if (scenario == "differ") differ(report, options);
  if (scenario == "other_thread") other_thread(report, options);
  if (scenario.starts_with("stuck")) stuck(report, scenario == "stuck_funneled");
  // MPI_Finalize would wait for a rank that is gone.
  if (scenario == "killed" || scenario == "late" || scenario.starts_with("stuck")) ::_exit(0);
  if (scenario == "trainers") {
    trainers(report, options);
    return 0;
  }
  if (scenario == "mistakes") {
    mistakes(report);
    return 0;
  }
  MPI_Finalize();
  return 0;
}
