#include "lockstep/plan/search/enumerate.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/plan/refused_products.h"

namespace lockstep::inline v0::plan {
namespace {

// Sizes of a micro-batch: every divisor up to the first, beyond it powers of two up to the second.
// A rank's products are as efficient as they become long before.
constexpr int64_t kEachMicroBatch = 16, kMostMicroBatch = 256;
constexpr int kMostChunks = 16;
// What an executor's tables hold of one stage (Parallelism::kMostMicroBatches).
constexpr int64_t kMostMicroBatches = 65536;

bool is_power_of_two(int64_t number) {
  return (number & (number - 1)) == 0;
}

// The sizes of the five axes, as layouts of the job.
std::vector<Layout> sizes_of(const ModelShape& model, const SearchRequest& request) {
  std::vector<Layout> meshes;
  const Layout& job = request.job;
  const auto small = [](int64_t size) { return static_cast<int>(size); };
  for (const int64_t tensor : divisors_of(request.ranks)) {
    if (model.heads % tensor != 0) continue;
    const int64_t others = request.ranks / tensor;
    for (const int64_t context : divisors_of(others)) {
      if (job.sequence % context != 0) continue;
      for (const int64_t expert : divisors_of(others / context)) {
        if (expert > 1 && (!model.has_experts() || model.experts % expert != 0)) continue;
        for (const int64_t pipe : divisors_of(others / context / expert)) {
          const int64_t data = others / context / expert / pipe;
          if (pipe > model.layers || job.global_batch % (data * expert) != 0) continue;
          Layout& mesh = meshes.emplace_back(job);
          mesh.data = small(data);
          mesh.pipe = small(pipe);
          mesh.context = small(context);
          mesh.expert = small(expert);
          mesh.tensor = small(tensor);
        }
      }
    }
  }
  return meshes;
}

std::vector<int64_t> micro_batches_of(const Layout& mesh, const SearchRequest& request) {
  const int64_t of_rank = mesh.global_batch / mesh.batch_ranks();
  std::vector<int64_t> sizes;
  // The trainer takes a batch in parts where the mesh divides the model.
  const bool whole = request.as_trained && mesh.data == mesh.ranks();
  for (const int64_t size : divisors_of(of_rank)) {
    if (request.micro_batch && size != *request.micro_batch) continue;
    if (whole) {
      if (size == of_rank) sizes.push_back(size);
      continue;
    }
    const bool looked_at =
        size <= kEachMicroBatch || (size <= kMostMicroBatch && is_power_of_two(size));
    if ((looked_at || request.micro_batch) && of_rank / size <= kMostMicroBatches)
      sizes.push_back(size);
  }
  return sizes;
}

// gpipe is left out unless it is asked for: 1f1b has its bubble and holds less.
std::vector<Scheduled> schedules_of(const Layout& mesh, const ModelShape& model,
                                    const SearchRequest& request) {
  if (mesh.pipe == 1) return {{"1f1b", 1}};
  const auto wanted = [&](const char* name) {
    return !request.schedule || *request.schedule == name;
  };
  std::vector<Scheduled> all;
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    const bool only_asked = std::string_view(name) == "gpipe" && !request.schedule;
    if (wanted(name) && !only_asked) all.push_back({name, 1});
  }
  if (wanted("zb-v")) all.push_back({"zb-v", 2});
  for (int chunks = 2; wanted("interleaved") && chunks <= kMostChunks; ++chunks) {
    const int64_t parts = int64_t{mesh.pipe} * chunks;
    if (parts > model.layers) break;
    const bool even = model.layers % parts == 0;
    if (chunks == 2 || (even && !request.as_trained) || request.chunks)
      all.push_back({"interleaved", chunks});
  }
  std::erase_if(
      all, [&](const Scheduled& one) { return request.chunks && one.chunks != *request.chunks; });
  return all;
}

std::vector<Sharded> shards_of(const Layout& mesh, const SearchRequest& request,
                               const Machine& machine) {
  std::vector<Sharded> all;
  const auto wanted = [&](int zero) { return !request.zero || *request.zero == zero; };
  const int most = mesh.replicas() > 1 ? 3 : 0;
  // Whole within each host (axis "shard" of lockstep train): of data alone.
  const int host = machine.ranks_per_host;
  const bool groups = most == 3 && mesh.data == mesh.ranks() && host > 1 && mesh.data > host &&
                      mesh.data % host == 0;
  for (int zero = 0; zero <= most; ++zero) {
    if (zero == 3 && groups && wanted(3)) all.push_back({3, host});
    if (wanted(zero)) all.push_back({zero, 0});
  }
  return all;
}

std::vector<bool> rows_of(const Layout& mesh, const SearchRequest& request) {
  if (mesh.tensor == 1) return {false};
  if (request.divides_rows) return {*request.divides_rows};
  return {false, true};
}

}  // namespace

std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> low, high;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i != number / i) high.push_back(number / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::string refusal_of(const Layout& layout, const ModelShape& model) {
  std::vector<std::string> used;
  const std::pair<const char*, int> axes[] = {{"pipe", layout.pipe},
                                              {"context", layout.context},
                                              {"expert", layout.expert},
                                              {"tensor", layout.tensor}};
  for (const auto& [axis, size] : axes)
    if (size > 1) used.emplace_back(axis);
  if (layout.zero > 1) used.push_back("zero " + std::to_string(layout.zero));
  if (layout.divides_rows && layout.tensor > 1) used.emplace_back("divided rows");
  if (model.tied && layout.pipe > 1) used.emplace_back("tied embeddings");
  const RefusedProduct* product = refused_among(used);
  return product == nullptr ? "" : to_string(*product);
}

bool allowed(const Layout& layout, const ModelShape& model) {
  if (!refusal_of(layout, model).empty()) return false;
  try {
    check(layout, model);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

int64_t MeshOptions::combinations() const {
  return static_cast<int64_t>(micro_batches.size() * divides_rows.size() * schedules.size() *
                              shards.size());
}

std::vector<MeshOptions> meshes_of(const ModelShape& model, const SearchRequest& request,
                                   const Machine& machine) {
  std::vector<MeshOptions> meshes;
  for (const Layout& mesh : sizes_of(model, request)) {
    MeshOptions options{.mesh = mesh,
                        .micro_batches = micro_batches_of(mesh, request),
                        .divides_rows = rows_of(mesh, request),
                        .schedules = schedules_of(mesh, model, request),
                        .shards = shards_of(mesh, request, machine)};
    if (options.combinations() > 0) meshes.push_back(std::move(options));
  }
  return meshes;
}

std::vector<Activations> policies_of(const SearchRequest& request) {
  if (request.activations) return {*request.activations};
  if (request.as_trained) return {Activations::kKept, Activations::kRecomputed};
  return {Activations::kKept, Activations::kSelective, Activations::kAlternate,
          Activations::kRecomputed};
}

}  // namespace lockstep::inline v0::plan
