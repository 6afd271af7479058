! A program in Fortran that hands Lockstep its communicator: application_fortran SCENARIO FOLDER.
! Each rank writes "all is well" into FOLDER/<rank>, or what is not.
program application_fortran
  use lockstep
  implicit none
  include 'mpif.h'
  type(lockstep_comm) :: comm
  double precision :: a(3, 2)
  integer :: rank, size, n, ierr, unit
  character(4096) :: folder
  character(12) :: name
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, size, ierr)
  call get_command_argument(2, folder)
  write (name, "(i0)") rank
  open (newunit=unit, file=trim(folder)//"/"//trim(name))
  call lockstep_init_from_mpi(MPI_COMM_NULL, comm, ierr=ierr)
  if (ierr /= LOCKSTEP_INVALID_ARGUMENT) write (unit, *) "MPI_COMM_NULL gives", ierr
  call lockstep_init_from_mpi(MPI_COMM_WORLD, comm, timeout_seconds=60d0)
  call lockstep_comm_rank(comm, n)
  if (n /= rank) write (unit, *) "the rank is", n
  a = rank + 1
  call lockstep_all_reduce(comm, a, LOCKSTEP_SUM)
  if (any(a /= size*(size + 1)/2)) write (unit, *) "the sum is", a
  call MPI_Finalize(ierr)
  call lockstep_barrier(comm)
  call lockstep_comm_free(comm)
  write (unit, "(a)") "all is well"
end program application_fortran
