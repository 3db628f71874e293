import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node in a directory; prints the port, and ends with its standard input. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set("hdfs.minidfs.basedir", arguments[0]);
        configuration.setInt("dfs.replication", 1);
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(configuration).numDataNodes(1).format(true).build();
        System.out.println("PORT " + cluster.getNameNodePort());
        System.out.flush();
        System.in.read();
        cluster.shutdown();
        System.exit(0);
    }
}
