// Binding: the processors of each rank, in mpirun's words (--bind-to, --map-by). Pure data.
#pragma once

namespace lockstep::inline v0::launch {

// Units of processors, from a hardware thread up to a socket.
enum class CpuUnit { kHwthread, kCore, kNuma, kSocket };

// Each host binds its own ranks, by its own processors. Where they do not fit, its agent refuses to
// start them (LaunchError).
struct Binding {
  // false: each rank has its share of the processors, and the rest has no meaning.
  bool given = false;
  // A rank gets all allowed processors of the units of this kind in which its cores lie.
  CpuUnit to = CpuUnit::kCore;
  // Ranks take cores in order (kCore), hardware threads in order (kHwthread), or cores from one
  // unit after another by turns (kNuma, kSocket).
  CpuUnit by = CpuUnit::kCore;
  // With kNuma and kSocket: so many ranks follow each other on a unit; 0: they take turns.
  int in_a_row = 0;
  int cores = 1;          // of a rank; hardware threads where either of the above is kHwthread
  bool overload = false;  // ranks may share cores, where there are fewer than they need

  bool operator==(const Binding&) const = default;
};

}  // namespace lockstep::inline v0::launch
