add_cc_test(transport_shm transport_shm.cc)
