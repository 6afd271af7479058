/* A program in C that hands Lockstep a part of its communicator: application_c SCENARIO FOLDER. Each
 * rank writes "all is well" into FOLDER/<rank>, or what is not. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/c/lockstep.h>
#include <lockstep/c/mpi.h>

static FILE* said;

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(said, "line %d: %s; %s\n", __LINE__, #condition, lockstep_last_error()); \
      return 1;                                                                        \
    }                                                                                  \
  } while (0)

static int run(int rank, int size) {
  lockstep_comm *comm = NULL, *trainers = NULL;
  lockstep_init_options options = LOCKSTEP_INIT_OPTIONS;
  options.rank = 3;
  CHECK(lockstep_init_from_mpi(MPI_COMM_WORLD, &options, &comm) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(strstr(lockstep_last_error(), "MPI's") != NULL && comm == NULL);
  CHECK(lockstep_init_from_mpi(MPI_COMM_NULL, NULL, &comm) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(strstr(lockstep_last_error(), "MPI_COMM_NULL") != NULL && comm == NULL);
  options.rank = -1;
  options.timeout_seconds = 60;
  CHECK(lockstep_init_from_mpi(MPI_COMM_WORLD, &options, &comm) == LOCKSTEP_OK);
  int32_t own = -1, all = -1;
  CHECK(lockstep_comm_rank(comm, &own) == LOCKSTEP_OK && own == rank);
  CHECK(lockstep_comm_size(comm, &all) == LOCKSTEP_OK && all == size);

  /* All but the last rank train, in the other order. */
  MPI_Comm part;
  MPI_Comm_split(MPI_COMM_WORLD, rank == size - 1 ? MPI_UNDEFINED : 0, -rank, &part);
  if (part != MPI_COMM_NULL) {
    CHECK(lockstep_init_from_mpi(part, NULL, &trainers) == LOCKSTEP_OK);
    CHECK(lockstep_comm_rank(trainers, &own) == LOCKSTEP_OK && own == size - 2 - rank);
    double x = rank + 1;
    lockstep_array array = {.data = &x, .ndim = 0, .dtype = LOCKSTEP_FLOAT64};
    CHECK(lockstep_all_reduce(trainers, &array, LOCKSTEP_SUM) == LOCKSTEP_OK);
    CHECK(x == size * (size - 1) / 2);
    CHECK(lockstep_comm_free(trainers) == LOCKSTEP_OK);
    MPI_Comm_free(&part);
  }
  CHECK(lockstep_barrier(comm) == LOCKSTEP_OK);
  int message = rank, sum = 0;
  MPI_Allreduce(&message, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  CHECK(sum == size * (size - 1) / 2);

  /* Over MPI itself, with a datatype and an operation that this program names too. */
  options.backend = "mpi";
  lockstep_comm* carried = NULL;
  CHECK(lockstep_init_from_mpi(MPI_COMM_WORLD, &options, &carried) == LOCKSTEP_OK);
  double value = rank + 1, own_sum = 0;
  MPI_Allreduce(&value, &own_sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  lockstep_array one = {.data = &value, .ndim = 0, .dtype = LOCKSTEP_FLOAT64};
  CHECK(lockstep_all_reduce(carried, &one, LOCKSTEP_SUM) == LOCKSTEP_OK);
  CHECK(value == own_sum && own_sum == size * (size + 1) / 2);
  CHECK(lockstep_comm_free(carried) == LOCKSTEP_OK);
  MPI_Finalize();
  /* It outlives MPI, for its own engines carry the data. */
  CHECK(lockstep_barrier(comm) == LOCKSTEP_OK);
  CHECK(lockstep_comm_free(comm) == LOCKSTEP_OK);
  fprintf(said, "all is well\n");
  return 0;
}

int main(int argc, char** argv) {
  int rank = 0, size = 0;
  lockstep_comm* comm = NULL;
  const lockstep_status early = lockstep_init_from_mpi(MPI_COMM_WORLD, NULL, &comm);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", argc > 2 ? argv[2] : ".", rank);
  said = fopen(path, "w");
  if (said == NULL) return 2;
  if (early != LOCKSTEP_INVALID_ARGUMENT)
    fprintf(said, "before MPI_Init the status is %d\n", early);
  const int status = run(rank, size);
  fclose(said);
  return status;
}
