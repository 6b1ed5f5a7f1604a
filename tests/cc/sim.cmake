# The checks of the simulator itself, and then the runs that count: a seed that fails prints the
# command that repeats it.
add_cc_test(sim_checks sim_checks.cc)
target_link_libraries(sim_checks PRIVATE tfring_sim_objects)

function(add_sim_test name)
  add_test(NAME sim_${name} COMMAND tfring_sim ${ARGN})
endfunction()

# Overlapping process sets {0,1}, {1,2}, {0,2} in random orders.
add_sim_test(triangle --workload=triangle --ranks=3 --seeds=10000)
add_sim_test(triangle_death --workload=triangle --ranks=3 --fault=death --seeds=3000)
add_sim_test(triangle_goodbye --workload=triangle --ranks=3 --fault=goodbye --seeds=3000)
add_sim_test(one_rank --workload=subsets --ranks=1 --seeds=200)
add_sim_test(subsets --workload=subsets --ranks=5 --seeds=1000)
add_sim_test(mismatch --workload=mismatch --ranks=4 --seeds=1000)
add_sim_test(death --workload=subsets --ranks=5 --fault=death --seeds=2000)
add_sim_test(hang --workload=subsets --ranks=4 --fault=hang --seeds=1000)
add_sim_test(goodbye --workload=mismatch --ranks=6 --fault=goodbye --seeds=2000)
# Every kind of collective, joins, process sets that come and go, calls that are wrong.
add_sim_test(random --workload=random --ranks=4 --seeds=600)
add_sim_test(random_one_rank --workload=random --ranks=1 --seeds=100)
add_sim_test(random_seven_ranks --workload=random --ranks=7 --seeds=200)
add_sim_test(random_death --workload=random --ranks=4 --fault=death --seeds=400)
add_sim_test(random_goodbye --workload=random --ranks=4 --fault=goodbye --seeds=400)
add_sim_test(random_hang --workload=random --ranks=4 --fault=hang --seeds=200)
add_sim_test(256_global --workload=global --ranks=256 --seeds=5)
add_sim_test(256_subsets --workload=subsets --ranks=256 --seeds=5)
add_sim_test(256_death --workload=subsets --ranks=256 --fault=death --seeds=5)
add_sim_test(256_goodbye --workload=mismatch --ranks=256 --fault=goodbye --seeds=5)
